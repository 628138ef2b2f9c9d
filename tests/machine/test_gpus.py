"""What nvidia-smi says of GPUs, as a run's start reads it; written after the fields' documentation, `nvidia-smi --help-query-gpu`."""

import pytest

from r3_openrlhf.machine.gpus import expandable_segments, parsed, taken_memory, visible

GPUS = "".join(
    f"{index}, GPU-{name}, 81559, {used}, NVIDIA H100, 580.65.06\n"
    for index, (name, used) in enumerate({"aa11": 62000, "bb22": 4, "cc33": 9000}.items())
)
PROCESSES = "GPU-aa11, 4711, 61234, VLLM::EngineCore\nGPU-aa11, 12, [N/A], python, -m thing\n"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:128, Expandable_Segments:true"),
    ],
)
def test_expandable_segments_are_found_under_both_names(variable, value):
    sentence = expandable_segments({variable: value})
    assert variable in sentence and value in sentence and "IPC" in sentence


def test_other_settings_of_the_allocator_pass():
    assert expandable_segments({}) is None
    others = "expandable_segments:False,garbage_collection_threshold:0.8"
    assert expandable_segments({"PYTORCH_CUDA_ALLOC_CONF": others}) is None


def test_who_holds_a_gpu_is_named_and_too_little_free_memory_ends_the_start():
    gpus = parsed(GPUS, PROCESSES)
    (first, refuses), (third, only_said) = taken_memory(gpus, share=0.7)
    assert refuses and not only_said
    # 81,559 - 62,000 MiB = 19.1 GiB; 0.7 of 79.6 GiB
    assert first.startswith("GPU 0 has 19.1 of 79.6 GiB free, and an engine takes 55.8 of it")
    for words in (
        "VLLM::EngineCore (pid 4711, 59.8 GiB)",
        "`kill 4711 12`",
        "python, -m thing",
    ):
        assert words in first
    assert (
        third.startswith("GPU 2 has 70.9 of 79.6 GiB free: ") and "another container" in third
    )


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, "0 1 2"),
        ("", ""),
        ("2,0", "2 0"),
        ("GPU-bb", "1"),
        ("MIG-1", "MIG-1"),
        ("-1", ""),
        ("0,9,1", "0"),
    ],
)
def test_only_the_gpus_of_the_run_are_looked_at(setting, indices):
    environment = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    chosen = visible(parsed(GPUS, ""), environment)
    assert [gpu.index for gpu in chosen] == indices.split()
