"""The text of a job script, and what is refused before there is one. No Slurm."""

import dataclasses
import json
import random
import re
import subprocess

import pytest

from r3_openrlhf.operations.cluster import ray_on_nodes
from r3_openrlhf.operations.cluster.site import Site, load_site
from r3_openrlhf.operations.cluster.slurm import forwarded
from tests.commands import r3


@pytest.fixture(autouse=True)
def no_site(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("R3_SITE", raising=False)


def dry_run(tmp_path, *arguments):
    command = [
        "submit",
        "slurm",
        "experiment=cpu_smoke",
        f"run_dir={tmp_path}/run",
        *arguments,
        "--dry-run",
    ]
    return r3(*command)


def header(text):
    """{"nodes": "2", ...}"""
    lines = [
        line.removeprefix("#SBATCH --")
        for line in text.splitlines()
        if line.startswith("#SBATCH --")
    ]
    return dict(line.partition("=")[::2] for line in lines)


def test_options_are_lines_of_the_script_that_is_written_and_printed(tmp_path):
    result = dry_run(
        tmp_path,
        "--nodes=2",
        "--partition=gpu",
        "--account=me",
        "--time=2:00:00",
        "--after=12",
        "--sbatch=--constraint=a b",
        "replay.k=3",
    )
    assert result.exit_code == 0, result.output
    found = header(result.stdout)
    assert {
        name: found[name] for name in ("nodes", "partition", "account", "time", "constraint")
    } == {
        "nodes": "2",
        "partition": "gpu",
        "account": "me",
        "time": "2:00:00",
        "constraint": "a b",
    }
    assert (
        found["dependency"] == "singleton,afterany:12"
        and "requeue" in found
        and found["open-mode"] == "append"
    )
    assert "replay.k=3 cluster.num_nodes=2 run_dir=" in result.stdout
    script = tmp_path / "run" / "cluster" / "job.sh"
    assert script.read_text() == result.stdout
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr == ""


def test_gpus_are_asked_for_where_the_experiment_needs_them(tmp_path):
    command = [
        "submit",
        "slurm",
        "experiment=r3_7b_deepscaler_multinode",
        f"run_dir={tmp_path}/run",
        "--dry-run",
    ]
    text = r3(*command).stdout
    assert (header(text)["nodes"], header(text)["gpus-per-node"]) == ("4", "8")
    assert "--gpus 8 --device cuda" in text
    assert "gpus-per-node" not in header(dry_run(tmp_path).stdout)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("--cpus-per-task=2", "--cpus-per-task gives a node 2 CPUs"),
        ("--sbatch=--cpus-per-task=3", "--sbatch=--cpus-per-task=3 gives a node 3 CPUs"),
        ("--sbatch=-c1", "--sbatch=-c1 gives a node 1 CPUs"),
        ("--cpus-per-task=4", None),
        ("--sbatch=--cpus-per-gpu=1", None),
    ],
)
def test_a_node_has_a_cpu_for_each_gpu(tmp_path, given, fault):
    settings = ["experiment=r3_1p5b_deepscaler_8gpu", "cluster.gpus_per_node=4"]
    result = r3("submit", "slurm", *settings, f"run_dir={tmp_path}/run", given, "--dry-run")
    if fault is None:
        assert result.exit_code == 0, result.stderr
        return
    assert result.exit_code == 1 and not (tmp_path / "run").exists()
    (line,) = result.stderr.splitlines()
    assert f"{fault}, but cluster.gpus_per_node is 4 and each GPU needs a CPU" in line
    assert "use --cpus-per-task 18, or leave it out" in line


def test_the_sites_file_gives_defaults_and_the_command_line_wins(tmp_path, monkeypatch):
    site = tmp_path / "site.yaml"
    site.write_text("partition: gpu\naccount: site\nray_args: --num-cpus=4\ntime: 24:00:00\n")
    monkeypatch.setenv("R3_SITE", str(site))
    result = dry_run(tmp_path, "--account=mine")
    assert (header(result.stdout)["partition"], header(result.stdout)["account"]) == (
        "gpu",
        "mine",
    )
    assert header(result.stdout)["time"] == "24:00:00"  # not 86400 minutes
    assert "--ray-args=--num-cpus=4" in result.stdout


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            b"partion: gpu\n",
            r"site.yaml sets partion, which does not exist; did you mean partition\?$",
        ),
        (b"- gpu\n", r"site.yaml holds a list; write one KEY: VALUE a line, of .*"),
        (
            b"account: site\npartition: [gpu\n",
            r"site.yaml cannot be read as YAML: expected .*, line 3, column 1$",
        ),
        (
            b"partition: gpu\npartition: cpu\n",
            r"site.yaml cannot be read as YAML: .*partition, line 2, column 1$",
        ),
        (b"account: \xff\n", r"site.yaml cannot be read as YAML: .*0xff.*$"),
    ],
)
def test_a_fault_of_the_sites_file_is_one_sentence_also_behind_a_long_path(
    tmp_path, monkeypatch, text, sentence
):
    site = tmp_path / ("a" * 150) / ("b" * 150) / "site.yaml"
    site.parent.mkdir(parents=True)
    site.write_bytes(text)
    monkeypatch.setenv("R3_SITE", str(site))
    assert re.search(sentence, dry_run(tmp_path).stderr.strip())


WRITTEN = ["012345", "2024_01", "1e5", "on", "1:30", "No", "0x1F", "1.50", "true", "24:00:00"]


def test_every_text_of_the_site_is_as_it_is_written(tmp_path, monkeypatch):
    """YAML 1.1 would make numbers and truths of them, and sbatch takes another account."""
    site = tmp_path / "site.yaml"
    monkeypatch.setenv("R3_SITE", str(site))
    draw = random.Random(0)
    made = [
        "".join(draw.choices("0123456789_:.eEon", k=draw.randint(1, 8))) for _ in range(300)
    ]
    texts = [field.name for field in dataclasses.fields(Site) if field.name != "cpus_per_task"]
    for written in WRITTEN + [f"1{middle}0" for middle in made]:
        site.write_text(
            "cpus_per_task: 4\n" + "".join(f"{name}: {written}\n" for name in texts)
        )
        loaded = load_site()
        assert {getattr(loaded, name) for name in texts} == {
            written
        } and loaded.cpus_per_task == 4
    site.write_text("account: 012345\npartition: 1:30\nqos: null\n")
    given = header(dry_run(tmp_path).stdout)
    assert (given["account"], given["partition"]) == ("012345", "1:30") and "qos" not in given


def test_containers(tmp_path):
    pyxis = dry_run(tmp_path, "--container=nvcr.io/x:1", "--mounts=/data:/data").stdout
    mounts = f"/data:/data,{tmp_path}/run:{tmp_path}/run"
    assert (
        f"--container-image=nvcr.io/x:1 --container-mounts={mounts} \\\n    python -m" in pyxis
    )
    apptainer = dry_run(tmp_path, "--container=/images/x.sif").stdout
    assert (
        f"apptainer exec --nv --bind {tmp_path}/run:{tmp_path}/run /images/x.sif python -m"
        in apptainer
    )


def test_seeds_are_an_array_with_a_run_each(tmp_path):
    text = dry_run(tmp_path, "--seeds=1,2,5").stdout
    assert header(text)["array"] == "1,2,5" and "dependency" not in header(text)
    assert 'seed=(train.seed="$SLURM_ARRAY_TASK_ID")' in text


def test_no_secret_is_written(tmp_path):
    plain = {"HF_HOME": "/h", "NCCL_DEBUG": "INFO", "WANDB_PROJECT": "p"}
    secret = dict.fromkeys(
        ("WANDB_API_KEY", "R3_PASS", "R3_auth", "R3_Pwd", "HF_TOKEN", "X", "R3_A;id"), "k"
    )
    urls = {"R3_PROXY": "http://me:word@proxy:3128", "R3_X": "https://token@x"}
    assert forwarded({**plain, **secret, **urls}) == plain
    script = tmp_path / "run" / "cluster" / "job.sh"
    script.parent.mkdir(parents=True)
    script.touch(0o644)  # of an earlier version
    result = dry_run(tmp_path, "reward.urls=[http://me:hunter2@host:5000]")
    assert (
        result.exit_code == 0
        and "hunter2" not in result.output
        and "http://host:5000" in result.stdout
    )
    # the job needs it, and only its owner may read it
    assert script.stat().st_mode & 0o777 == 0o600 and script.read_text().count("hunter2") == 1
    command = [
        "submit",
        "ray",
        "experiment=cpu_smoke",
        "run_dir=/runs/x",
        "reward.urls=[http://me:hunter2@host:5000]",
    ]
    for more in (["--dry-run"], ["--manifest", "--image=i", "--claim=c", "--mount=/runs"]):
        result = r3(*command, *more)
        assert (
            result.exit_code == 0
            and "hunter2" not in result.output
            and "http://host:5000" in result.stdout
        )


@pytest.mark.parametrize(("given", "said"), [("7", "7"), (None, "none")])
def test_srun_gets_the_cpus_that_sbatch_got(tmp_path, given, said):
    """Also those of SBATCH_CPUS_PER_TASK or of an #SBATCH line that the site adds: Slurm says them in SLURM_CPUS_PER_TASK."""
    lines = [
        line for line in dry_run(tmp_path).stdout.splitlines() if "SRUN_CPUS_PER_TASK" in line
    ]
    environment = {"SLURM_CPUS_PER_TASK": given} if given else {}
    script = "\n".join(["set -u", *lines, "echo ${SRUN_CPUS_PER_TASK:-none}"])
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == said


def test_rays_object_store_is_set_from_what_is_free(tmp_path):
    gib = 2**30
    # Ray refuses 75 MiB
    sizes = {
        (10, 100): 5 * gib,
        (900, 100): 20 * gib,
        (900, 2000): 32 * gib,
        (0.01, 1): 80 * 2**20,
    }
    for (shared, memory), size in sizes.items():
        assert ray_on_nodes.object_store_bytes(int(shared * gib), memory * gib) == size
    command = ray_on_nodes.start_command(
        address="10.0.0.1",
        port=1,
        head="10.0.0.1:1",
        node="a",
        temp_dir=tmp_path,
        gpus=8,
        ray_args="--object-store-memory=99000000",
    )
    given = [part for part in command if part.startswith("--object-store-memory=")]
    # of two Ray takes the last
    assert len(given) == 2 and given[-1] == "--object-store-memory=99000000"


@pytest.mark.parametrize(
    "option", ["partition", "account", "qos", "time", "gres", "after", "sbatch"]
)
def test_no_value_is_another_option_or_a_command(tmp_path, option, monkeypatch):
    for value in ("x --wrap=x", "x\ntouch attacked", "x\x1b[2J", "x\t--wrap"):
        result = dry_run(tmp_path, f"--{option}={value}")
        assert result.exit_code == 1 and f"--{option} is {value!r}; use " in result.stderr, (
            value,
            result.stderr,
        )
        assert len(result.stderr.splitlines()) == 1 and not (tmp_path / "run").exists()
    if option in ("partition", "time"):
        # the site's file is no better
        (tmp_path / "site.yaml").write_text(json.dumps({option: value}))
        monkeypatch.setenv("R3_SITE", str(tmp_path / "site.yaml"))
        assert f"--{option} is " in dry_run(tmp_path).stderr


@pytest.mark.parametrize("run_dir", ["a\nb", "a\rb", "a\x1bb", "a\x7f"])
def test_a_run_directory_has_no_control_characters(tmp_path, run_dir):
    for command in (["slurm", "--dry-run"], ["ray", "--dry-run"]):
        settings = ["experiment=cpu_smoke", f"run_dir={tmp_path}/{run_dir}"]
        result = r3("submit", *command, *settings)
        assert (
            result.exit_code == 1 and result.stdout == "" and "Traceback" not in result.stderr
        ), result.stderr
        assert len(result.stderr.splitlines()) == 1 and not list(tmp_path.iterdir())


MISTAKES = {
    ("replay.kk=1",): "replay.kk does not exist; did you mean replay.k?",
    ("--seeds=1,x",): "--seeds is '1,x'",
    ("--lead=90",): "--lead no longer exists; use --sbatch=--signal=USR1@SECONDS",
    ("--template=/nowhere",): "template /nowhere does not exist",
    ("experiment=quickstart",): "r3 submit needs one experiment=NAME",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_sentence_before_anything_is_written(tmp_path, arguments):
    result = dry_run(tmp_path, *arguments)
    assert (
        result.exit_code == 1 and MISTAKES[arguments] in result.stderr and result.stdout == ""
    )
    assert not (tmp_path / "run").exists()
