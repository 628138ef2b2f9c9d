"""A command line of OpenRLHF becomes an experiment that gives OpenRLHF the same values."""

import itertools
import operator
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")

from r3_openrlhf.config.loading import load_config, with_overrides
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.first_page import algorithm_lines
from r3_openrlhf.stack.arguments import openrlhf_arguments
from r3_openrlhf.stack.flags import OLD_NAMES
from r3_openrlhf.stack.import_openrlhf import MODULE, NAME, by_new_names, page
from r3_openrlhf.stack.shell_arithmetic import is_test_true, is_true
from r3_openrlhf.stack.shell_words import command_words, words_after
from r3_openrlhf.stack.upstream_parser import installed_flags, parsed_flags

pytestmark = pytest.mark.stack
WORDS_OF_SCRIPT = command_words(
    [str(Path(__file__).with_name("openrlhf_command.sh"))], MODULE, NAME
).words
SAID_OTHERWISE = {  # by the reasons on the page, or as R³ names its files
    "vllm.num_engines",
    "train.colocate_all",
    "critic.max_norm",
    "logger.wandb.key",
    "reward.remote_url",
    "data.input_template",
    "data.prompt_dataset",
    "data.input_key",
    "data.label_key",
}


def test_openrlhf_gets_the_values_of_the_script():
    text, refused = page(WORDS_OF_SCRIPT)
    assert refused is None
    config = with_overrides(yaml.safe_load(text), [], source="test")
    ours = openrlhf_arguments(
        config, RunDirectory("/runs/x"), model_dir=config.model.path, platform="cuda"
    )
    before, given = parsed_flags(by_new_names(WORDS_OF_SCRIPT)[0])
    after, _ = parsed_flags(ours)
    assert {flag: after[flag] for flag in given - SAID_OTHERWISE} == {
        flag: before[flag] for flag in given - SAID_OTHERWISE
    }
    # OpenRLHF's default, which is not ours
    assert after["actor.lr_scheduler"] == before["actor.lr_scheduler"]
    data = config.data
    assert (data.path, data.problem_key, data.prompt_template) == (
        "/data/my.jsonl",
        "question",
        "Q: {problem}\nA:",
    )
    assert config.reward.urls == ["http://localhost:5000/get_reward"] and not data.chat_template


def test_what_has_no_counterpart_is_said_with_its_reason():
    text, _ = page(WORDS_OF_SCRIPT)
    assert "#   --critic.max_norm: algo=grpo has no critic\n" in text
    assert (
        "#   --logger.wandb.key: a key does not belong on a command line" in text
        and "secret" not in text
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--actor.model_name_or_pat", "x"],
            "OpenRLHF has no flag --actor.model_name_or_pat; did you mean",
        ),
        (["--a", "1", "--b"], "OpenRLHF has no flag --a; .*; OpenRLHF has no flag --b; "),
        (["--data.image_key", "images"], "trains on images .*, and R³ trains on text only"),
        (
            ["--train.batch_size", "many"],
            "OpenRLHF does not accept the arguments: argument --train.batch_size",
        ),
    ],
)
def test_flags_that_openrlhf_refuses(words, sentence):
    with pytest.raises(ConfigError, match=sentence):
        page(words)


BASE = ["--actor.model_name_or_path", "a/b", "--data.prompt_dataset", "x.jsonl"]
GRPO = [
    *BASE,
    *["--algo.advantage.estimator", "group_norm", "--rollout.n_samples_per_prompt", "4"],
    *["--rollout.max_new_tokens", "1024"],
]
OLD = """--pretrain a/b --prompt_data x.jsonl --save_path out --bf16 --flash_attn --prompt_max_len 100 --generate_max_len 300
--train_batch_size=64 --colocate_all_models --advantage_estimator group_norm --actor_learning_rate 1e-6 --use_wandb key"""
NEW = """--actor.model_name_or_path a/b --data.prompt_dataset x.jsonl --ckpt.output_dir out --ds.param_dtype bf16
--ds.attn_implementation flash_attention_2 --rollout.max_new_tokens 300 --data.max_len 400 --train.batch_size 64 --train.colocate_all
--algo.advantage.estimator group_norm --actor.adam.lr 1e-6 --logger.wandb.key key"""


def test_old_flags_become_those_of_today():
    renamed, lost = by_new_names(OLD.split())
    assert parsed_flags(renamed) == parsed_flags(NEW.split()) and lost == []
    assert {new.partition("=")[0] for new in OLD_NAMES.values()} <= set(installed_flags())
    assert not set(OLD_NAMES) & set(installed_flags())


# flags that a release between 0.5.0 and 0.11.1 took and 0.11.2 does not, by its own parser
OF_OLD_RELEASES = """actor_init_on_gpu algo.advantage.is_correction_enable algo.advantage.is_correction_type dataloader_num_workers
disable_trace_cache enable_vllm_is_correction freeze_visual_encoder max_images_per_prompt max_new_tokens max_tokens_per_gpu perf pretrain_data
pretrain_data_probs pretrain_split prompt_max_len ptx_coef stop_properly_penalty_coef torch_compile universal_ckpt use_icepop
use_kl_estimator_k3 use_linger_kernel vllm_is_correction_type vllm_is_truncated_threshold"""


@pytest.mark.parametrize("flag", OF_OLD_RELEASES.split())
def test_every_flag_of_an_older_release_is_read(flag):
    """It has a flag of today, or the page says why it has none."""
    values = {"vllm_is_correction_type": "tis", "algo.advantage.is_correction_type": "tis"}
    renamed, lost = by_new_names([f"--{flag}", values.get(flag, "1")])
    known = {word.removeprefix("--") for word in renamed if word.startswith("--")}
    assert known <= set(installed_flags()) and (known or lost)
    assert flag not in installed_flags()


@pytest.mark.parametrize(
    ("old", "correction"),
    [
        ("--enable_vllm_is_correction --vllm_is_truncated_threshold 2", ("tis", 2.0, None)),
        ("--enable_vllm_is_correction --vllm_is_truncated_threshold .5 5", ("tis", 5.0, 0.5)),
        (
            "--enable_vllm_is_correction --vllm_is_truncated_threshold .5 5 --use_icepop",
            ("icepop", 5.0, 0.5),
        ),
        (
            "--vllm_is_correction_type seq-mask-tis --enable_vllm_is_correction --vllm_is_truncated_threshold .9 1.1",
            ("sequence", 1.1, 0.9),
        ),
        (
            "--algo.advantage.is_correction_enable --algo.advantage.is_correction_type=icepop "
            "--algo.advantage.is_correction_threshold .5 5",
            ("icepop", 5.0, 0.5),
        ),
        ("--vllm_is_correction_type icepop --vllm_is_truncated_threshold .5 5", None),
        ("", None),
    ],
)
def test_the_correction_of_older_releases_is_that_of_today(old, correction):
    text, refused = page([*GRPO, *old.split()])
    found = yaml.safe_load(text).get("train", {}).get("correction")
    assert refused is None
    if correction is None:
        assert found is None
        assert ("it does nothing without --enable_vllm_is_correction" in text) is bool(old)
        return
    assert (found["method"], found["high"], found.get("low")) == correction
    with_overrides(yaml.safe_load(text), [], source="test")


def test_a_correction_without_bounds_names_what_they_were():
    text, _ = page([*BASE, "--enable_vllm_is_correction"])
    assert "up to 0.9.0 it was 2 from above alone (train.correction.high=2)" in text
    with pytest.raises(ConfigError, match="no correction 'mis'.*one of tis, icepop"):
        page([*BASE, "--enable_vllm_is_correction", "--vllm_is_correction_type", "mis"])


def test_a_long_recipe_of_0_9_is_an_experiment():
    """Dynamic sampling, KL in the loss, a correction and a penalty on cut responses."""
    recipe = """--pretrain a/b --prompt_data x.jsonl --advantage_estimator group_norm --dynamic_filtering
    --dynamic_filtering_reward_range 0.1 0.9 --enable_vllm_is_correction --vllm_is_truncated_threshold .5 5 --use_icepop
    --init_kl_coef 1e-4 --use_kl_loss --kl_estimator k2 --eps_clip_low_high .2 .27 --stop_properly_penalty_coef 0.0
    --prompt_max_len 1024 --generate_max_len 8192 --n_samples_per_prompt 16 --actor_init_on_gpu --perf --ptx_coef 0.05"""
    text, refused = page(recipe.split())
    assert refused is None
    config = with_overrides(yaml.safe_load(text), [], source="test")
    ours = openrlhf_arguments(config, RunDirectory("/runs/x"), model_dir="a/b", platform="cuda")
    values, _ = parsed_flags(ours)
    assert values["reward.stop_properly_penalty_coef"] == 0.0
    assert tuple(values["algo.dynamic_filtering_range"]) == (0.1, 0.9)
    assert text.count("0.11 has nothing like it") == 2
    assert "#   --ptx_coef: OpenRLHF 0.11 trains on no pretraining data besides\n" in text


def test_an_imported_run_says_that_it_has_no_r3_and_takes_it(tmp_path):
    text, _ = page(GRPO)
    assert text.splitlines()[1] == (
        "# Without R³: algo=grpo, as the script has it. `r3 train experiment=THIS_FILE algo=r3` adds R³."
    )
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    config = load_config(str(path), [])
    assert "without R³; algo=r3 adds it" in algorithm_lines(config)
    config = load_config(str(path), ["algo=r3"])
    assert config.replay.enabled and config.reflection.enabled and config.ranking.enabled
    assert "without R³; algo=r3 adds it" not in algorithm_lines(config)


PARTS = tomllib.loads(Path(__file__).with_name("shell_scripts.toml").read_text())
LINES, WORDS, CALLS = (st.sampled_from(PARTS[name]) for name in ("lines", "words", "calls"))


@given(st.lists(LINES, max_size=6), st.lists(WORDS, max_size=6), CALLS)
@settings(max_examples=200, deadline=None)
def test_a_script_is_read_as_bash_reads_it(lines, words, call):
    script = "\n".join(
        [
            "A=0 B= N=n O=x P=p D='d d' V=v X=x Y=y i=0 j=0; ARGS=()",
            *lines,
            call.format(" ".join(words)),
            "exit",
        ]
    )
    bash = 'python3() { shift 2; [ $# = 0 ] || printf "%s\\0" "$@" >&3; }\n' + script
    done = subprocess.run(
        ["bash", "-c", f"exec 3>&1\n{bash}"], capture_output=True, cwd="/proc"
    )
    assert words_after(script, re.compile("M")) == done.stdout.decode().split("\0")[:-1]


SIGNS = [
    *"\"'`\\\n ;#=AM",
    *["$(", ")", "${A:-", "}", "$((", "))", ";;", "esac"],
    "case ",
    " in ",
    "read A <<E\n",
    "|| echo ",
]


@given(st.lists(st.sampled_from(SIGNS), max_size=6), st.booleans())
@settings(max_examples=300, deadline=None)
def test_whatever_a_script_holds_it_is_read(parts, is_open):
    """Repeated, a pattern that can match in two ways would double its time with each part, and never return."""
    words_after('"' * is_open + "".join(parts) * 40, re.compile("M"))


def test_a_command_in_quotes_is_found(tmp_path):
    (tmp_path / "s.sh").write_text(
        "N='2 4'\nsrun --overlap bash -c \"cd x; ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --a '$N'\" &>> log\n"
    )
    assert command_words([str(tmp_path / "s.sh")], MODULE, NAME).words == ["--a", "2 4"]


@pytest.mark.parametrize(
    "left", ["$LLM", "${LLM}", "${#ARGS[@]}", "p_$(date +%F)", "`hostname`", "$1", "a-${LLM^^}"]
)
def test_what_a_script_does_not_say_is_a_sentence(left):
    """A word that the reader leaves as it is was a value of the experiment, and a model called $LLM."""
    with pytest.raises(ConfigError, match="does not say what --reward.remote_url ") as refused:
        page([*BASE, "--reward.remote_url", left])
    assert left in str(refused.value) and "NAME=VALUE before its path" in str(refused.value)
    for flag in ("--ckpt.output_dir", "--ckpt.path", "--logger.wandb.run_name"):
        text, _ = page([*BASE, flag, f"out/{left}"])
        assert f"#   {flag}: out/{left}, of which " in text
        assert "$" not in text.partition("\n# ")[0] and "`" not in text.partition("\n# ")[0]
    text, _ = page([*BASE, "--logger.wandb.key", left, "--data.input_template", "$x$ {}"])
    assert "#   --logger.wandb.key: a key does not belong" in text and "$x$ {problem}" in text


def test_a_function_that_the_script_s_own_words_choose_is_read():
    script = 'train() {\n  python -m M --a "$1" --b ${M2##*/}\n}\nM2=org/seven\n"$@"\n'
    assert words_after(script, re.compile("M")) == ["--a", "$1", "--b", "seven"]


@given(st.integers(1, 40))
@settings(max_examples=5, deadline=None)
def test_functions_that_call_each_other_end(depth):
    names = [f"f{place}" for place in range(depth + 1)]
    script = "".join(
        f"{name}() {{ {after}; {after}; }}\n"
        for name, after in zip(names, [*names[1:], "f0"], strict=True)
    )
    assert words_after(script + "f0\npython -m M --a 1\n", re.compile("M")) == ["--a", "1"]


@pytest.mark.parametrize(
    ("script", "words", "note"),
    [
        (
            "for lr in 1e-6 5e-7; do python -m M --lr $lr; done",
            ["--lr", "1e-6"],
            "calls it 2 times; this is the call with lr=1e-6. The others have lr=5e-7",
        ),
        ("for lr in 1e-6; do python -m M --lr $lr; done", ["--lr", "1e-6"], None),
        ("while true; do python -m M --a 1 && break; sleep 5; done", ["--a", "1"], None),
        ("until python -m M --a 1; do sleep 5; done", ["--a", "1"], None),
        (
            "for ((seed=1; seed<4; seed++)); do python -m M --s $seed; done",
            ["--s", "1"],
            "a loop calls it more than once; this is the first call",
        ),
        ("bash -c 'for ((i=0; i<2; i++)); do A+=$i; done; python -m M $A'", ["01"], None),
        # what a loop makes of files, of a command or of its input is not in the script
        ("for f in *.json; do python -m M --f $f; done", ["--f", "$f"], None),
        ("for f in $(ls); do F=$f; done; python -m M --f $F", ["--f", "$F"], None),
        ("F=a; while read F; do F=x; done; python -m M --f $F", ["--f", "$F"], None),
        (
            "for f in 1 2; do F=$f; if [ -f x ]; then break; fi; done; python -m M $F",
            ["$F"],
            None,
        ),
        (
            "for a in x y; do\n  case $1 in s) A=$a ;; esac\ndone\npython -m M ${A-none}",
            ["none"],
            None,
        ),
        (
            "i=0; while [ $i -lt 3 ]; do i=$((i+1)); F=$i; if [ -f x ]; then break; fi; done; python -m M $F",
            ["$F"],
            None,
        ),
    ],
)
def test_a_loop_is_followed_as_far_as_the_script_decides_it(script, words, note):
    notes = []
    assert words_after(script, re.compile("M"), notes=notes) == words
    assert "".join(notes).endswith(note or "") and bool(notes) is bool(note)


def test_paths_beside_the_script_are_known(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    path = tmp_path / "a" / "b" / "run.sh"
    path.write_text(
        'HERE="$(dirname "$0")"\nROOT=$(cd "$HERE/../.." && pwd)\nTOO="$(cd "$(dirname "${BASH_SOURCE[0]}")" >/dev/null 2>&1; pwd -P)"\n'
        "python -m openrlhf.cli.train_ppo_ray --a $ROOT/x --b ${TOO} --c $(basename $0) --d $(dirname $LLM)\n"
    )
    assert command_words([str(path)], MODULE, NAME).words == [
        *["--a", f"{tmp_path}/x", "--b", f"{tmp_path}/a/b", "--c", "run.sh"],
        *["--d", "$(dirname $LLM)"],
    ]


def test_a_variable_of_a_loop_may_be_given():
    script = "for f in *.json; do python -m M --f $f; done"
    assert words_after(script, re.compile("M"), {"f": ["a.json"]}) == ["--f", "a.json"]


@pytest.mark.parametrize("turn", ["i=$((i + 0))", "for j in {1..900}; do i=0; done"])
def test_a_loop_without_end_is_a_sentence(turn):
    script = f"i=0; while [ $i -lt 3 ]; do {turn}; done; python -m M"
    with pytest.raises(ConfigError, match="take more than 1,000 turns; write the command's"):
        words_after(script, re.compile("M"))


@pytest.mark.parametrize(
    ("sign", "of_test", "same"),
    [
        ("<", "-lt", operator.lt),
        ("<=", "-le", operator.le),
        (">", "-gt", operator.gt),
        (">=", "-ge", operator.ge),
        ("==", "-eq", operator.eq),
        ("!=", "-ne", operator.ne),
    ],
)
def test_comparisons_of_a_loop(sign, of_test, same):
    for a, b in itertools.product((-1, 0, 2, 10), repeat=2):
        assert is_true(f"A {sign} {b}", {"A": [str(a)]}) is same(a, b)
        assert is_test_true(["[", str(a), of_test, str(b), "]"]) is same(a, b)
    assert (
        is_true(f"N {sign} 1", {}) is None
        and is_test_true(["[", "$N", of_test, "1", "]"]) is None
    )


def test_a_script_that_does_not_exist_is_named(tmp_path):
    for words in ([str(tmp_path / "run.sh")], ["LR=1", "run.sh"], ["run"]):
        with pytest.raises(ConfigError, match=rf"^{words[-1]}: there is no such script"):
            command_words(words, MODULE, NAME)
    assert command_words(["--a", "run.sh"], MODULE, NAME).words == ["--a", "run.sh"]


def test_a_script_of_something_else_is_not_run(tmp_path):
    path, mark = tmp_path / "run.sh", tmp_path / "mark"
    path.write_text(f"touch {mark}\npython train.py\n")
    with pytest.raises(ConfigError, match=r"run.sh does not call openrlhf.cli.train_ppo_ray"):
        command_words([str(path)], MODULE, NAME)
    assert not mark.exists()


def test_an_estimator_that_is_not_here():
    text, _ = page(
        [
            "--actor.model_name_or_path",
            "a/b",
            "--data.prompt_dataset",
            "x",
            "--algo.advantage.estimator",
            "rloo",
            "--algo.dynamic_filtering_enable",
            "--reward.remote_url",
            "http://host",
            "--rollout.n_samples_per_prompt",
            "8",
        ]
    )
    assert "--algo.advantage.estimator: rloo is none of dapo" in text


@pytest.mark.parametrize(
    ("flags", "algo"),
    [
        (
            "--critic.freezing_steps 3 --critic.adam.lr 1e-5 --algo.advantage.lambd 0.95 --critic.adam.eps 1e-6",
            "ppo",
        ),
        ("--algo.advantage.estimator reinforce", "reinforce_pp"),
        ("--algo.advantage.estimator flash_reinforce", "flash_reinforce"),
        (
            "--algo.advantage.estimator flash_reinforce --actor.loss_agg_mode seq-mean-token-mean "
            "--algo.advantage.is_correction_level seq --algo.advantage.is_correction_gating binary_kl "
            "--algo.advantage.is_correction_threshold 5e-3",
            "flash_reinforce",
        ),
        ("--algo.advantage.estimator dr_grpo --algo.kl.use_loss", "dr_grpo"),
        ("--algo.advantage.estimator group_norm --actor.policy_loss_type gspo", "gspo"),
        ("--algo.advantage.estimator group_norm", "grpo"),
    ],
)
def test_an_estimator_and_its_loss_are_a_preset(flags, algo):
    words = f"--actor.model_name_or_path a/b --data.prompt_dataset x.jsonl --train.batch_size 1024 {flags}".split()
    words += [
        "--rollout.n_samples_per_prompt",
        "8",
        "--rollout.batch_size",
        "128",
        "--rollout.max_new_tokens",
        "1024",
    ]
    text, refused = page(words)
    config = with_overrides(yaml.safe_load(text), [], source="test")
    ours = openrlhf_arguments(config, RunDirectory("/runs/x"), model_dir="/m", platform="cuda")
    before, after = parsed_flags(words)[0], parsed_flags(ours)[0]
    assert refused is None and config.algo == algo
    kept = [
        "algo.advantage.estimator",
        "actor.policy_loss_type",
        "algo.kl.use_loss",
        "algo.kl.estimator",
    ]
    if algo == "flash_reinforce":
        kept += ["actor.loss_agg_mode", "rollout.n_samples_per_prompt", "train.batch_size"]
        kept += [f"algo.advantage.is_correction_{name}" for name in ("level", "gating")]
    if algo == "ppo":
        critic = [
            "freezing_steps",
            "adam.lr",
            "adam.eps",
            "value_clip",
            "lr_scheduler",
            "lr_warmup_ratio",
        ]
        kept += ["algo.advantage.lambd", *(f"critic.{name}" for name in critic)]
    assert {flag: after[flag] for flag in kept} == {flag: before[flag] for flag in kept}
