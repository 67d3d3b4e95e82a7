"""`tdiag run` on small programs: streams, options, endings, and what is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.launch.harness import latest, script, tdiag

TRAINING = """
import sys, torch
model = torch.nn.Linear(4, 1)
for step in range(int(sys.argv[1])):
    loss = model(torch.ones(2, 4)).sum()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():  # by hand: an optimizer imports what takes longer than torch itself
        for weight in model.parameters():
            weight -= 0.01 * weight.grad
    print("step", step, flush=True)
"""


def run_json(folder: Path) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((latest(folder) / "run.json").read_text())
    return loaded


def test_stdout_is_the_scripts_and_the_report_goes_to_stderr(tmp_path: Path) -> None:
    name = script(tmp_path, TRAINING)
    done = tdiag("run", name, "9", "--sampler", "off", cwd=tmp_path)
    assert done.stdout == "".join(f"step {n}\n" for n in range(9))
    assert done.returncode == 0
    assert "Step time" in done.stderr and latest(tmp_path).name in done.stderr
    assert (latest(tmp_path) / "diagnosis.json").is_file()
    page = latest(tmp_path) / "report.html"
    assert done.stderr.endswith(f"tdiag: report page: {page.relative_to(tmp_path)}\n")
    assert page.read_text().rstrip().endswith("</html>")


def test_json_has_stdout_for_itself_and_o_writes_the_same(tmp_path: Path) -> None:
    name = script(tmp_path, "print('step 2'); events.step()", training=True)
    done = tdiag("run", name, "--json", "-o", "out.json", "3", "--sampler", "off", cwd=tmp_path)
    printed = json.loads(done.stdout)
    assert printed["schema_version"] == 2 and printed["verdict"]["class"]
    assert json.loads((tmp_path / "out.json").read_text()) == printed
    assert "step 2\n" in done.stderr and "Step time" not in done.stderr


def test_quiet_says_one_line(tmp_path: Path) -> None:
    name = script(tmp_path, "import time; events.step(); time.sleep(1)", training=True)
    assert "tdiag  warming up" in tdiag("run", name, cwd=tmp_path).stderr
    quiet = tdiag("run", name, "-q", cwd=tmp_path).stderr
    assert quiet.count("\n") == 1 and quiet.startswith("No verdict: ")
    assert tdiag("report", "--quiet", cwd=tmp_path).stdout == quiet


def test_the_display_follows_the_events(tmp_path: Path) -> None:
    name = script(tmp_path, """
        events.window('baseline')
        for _ in range(10): events.step()
        time.sleep(1)
        events.write('finish', t=events.now, why='complete')
        time.sleep(1)
        """, training=True)  # fmt: skip
    said = [x for x in tdiag("run", name, cwd=tmp_path).stderr.splitlines() if "tdiag  " in x]
    assert said[-2:] == [
        "tdiag  timing clean steps, no profiler on  (10 steps, 5.31 ms each)",
        "tdiag  evidence complete, the script goes on at full speed",
    ]


def test_the_probe_is_told_what_was_asked_for(tmp_path: Path) -> None:
    name = script(tmp_path, "pass")
    words = ["--profiling", "--steps", "7", "--time-budget", "9", "--sampler", "in-process"]
    tdiag("run", *words, name, cwd=tmp_path)
    config = json.loads((latest(tmp_path) / "config.json").read_text())
    assert config.pop("sampler_hint")
    assert config == {
        "profiling": True, "steps": 7, "time_budget_s": 9.0, "sampler": "in-process",
        "windows": ["baseline", "sample", "trace", "calls", "ops", "again"],
    }  # fmt: skip
    record = run_json(tmp_path)
    assert record["command"] == [sys.executable, name] and record["exit_code"] == 0


ENDINGS = {
    "sys.exit(3)": (3, "the program ended with exit code 3 after 4 training steps (3 measured)"),
    "os._exit(7)": (7, "the program ended with exit code 7 after 4 training steps (3 measured)"),
    "os.kill(os.getpid(), 9)": (137, "was killed by SIGKILL (the kernel does this when memory"),
    "events.write('failure', where='loader', what='E: x')": (0, "tdiag's probe: loader: E: x"),
}


@pytest.mark.parametrize("end", ENDINGS)
def test_a_run_cut_short_is_kept_and_says_how_it_ended(end: str, tmp_path: Path) -> None:
    source = f"import sys\nfor _ in range(3): events.step()\n{end}\n"
    code, words = ENDINGS[end]
    done = tdiag("run", script(tmp_path, source, training=True), cwd=tmp_path)
    assert done.returncode == code
    assert words in " ".join(str(note) for note in run_json(tmp_path)["notes"])  # type: ignore[attr-defined]
    assert words[:40] in done.stderr and "-I, -E" not in done.stderr
    assert (latest(tmp_path) / "system.jsonl").stat().st_size


def test_a_script_that_never_trains_gets_its_exit_code_and_a_clear_word(tmp_path: Path) -> None:
    done = tdiag("run", script(tmp_path, "import torch; print('hi')"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hi\n")
    assert "no training step was seen" in done.stderr


def test_a_launcher_runs_as_it_stands(tmp_path: Path) -> None:
    script(tmp_path, "import sys; print(sys.argv[1:]); sys.exit(4)")
    line = f"exec {sys.executable} train.py --profiling"
    done = tdiag("run", "--", "sh", "-c", line, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "['--profiling']\n")


def test_a_module_runs_as_with_python_m(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    script(tmp_path / "pkg", "import sys; print(__name__, __package__, sys.argv[1:])", "fit.py")
    assert tdiag("run", "-m", "pkg.fit", "-x", cwd=tmp_path).stdout == "__main__ pkg ['-x']\n"


def test_a_failure_of_tdiag_itself_keeps_the_run_and_the_scripts_exit_code(tmp_path: Path) -> None:
    """The script takes the run's own record away, as no real one should."""
    name = script(tmp_path, """
        import os, shutil, sys
        for _ in range(3):  # tdiag's sampler may add a file meanwhile
            shutil.rmtree(os.environ['TDIAG_RUN'], ignore_errors=True)
        sys.exit(3)
        """)  # fmt: skip
    done = tdiag("run", name, cwd=tmp_path)
    assert done.returncode == 3
    assert "tdiag: " in done.stderr and "exit code 3" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_diagnosis_that_cannot_be_kept_is_shown_all_the_same(tmp_path: Path) -> None:
    name = script(tmp_path, "import os; os.mkdir(os.environ['TDIAG_RUN'] + '/diagnosis.json')")
    done = tdiag("run", name, cwd=tmp_path)
    assert done.returncode == 0
    assert "tdiag: cannot write" in done.stderr and "No verdict" in done.stderr


BAD = {
    "nowhere.py": (2, "tdiag: no such script: nowhere.py"),
    "": (2, "tdiag: nothing to run"),
    "-- nowhere": (127, "tdiag: nowhere: command not found"),
    "train.py --sampler magic": (2, "tdiag: --sampler magic is not one of py-spy, in-process, off"),
    "train.py -o no/such/dir.json": (2, "tdiag: cannot write no/such/dir.json"),
    "--wrong train.py": (2, "No such option"),
    "train.py --steps few": (2, "Invalid value"),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_message_and_leaves_nothing_behind(words: str, tmp_path: Path) -> None:
    script(tmp_path, "print('ran')")
    code, message = BAD[words]
    done = tdiag("run", *words.split(), cwd=tmp_path)
    assert done.returncode == code and message in done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert not (tmp_path / ".tdiag").exists()


def test_a_report_can_be_shown_again(tmp_path: Path) -> None:
    first = tdiag("run", script(tmp_path, "events.step()", training=True), cwd=tmp_path)
    again = tdiag("report", cwd=tmp_path)
    assert again.stdout in first.stderr, "between progress and where the page is"
    as_json = json.loads(tdiag("report", str(latest(tmp_path)), "--json", cwd=tmp_path).stdout)
    assert as_json == json.loads((latest(tmp_path) / "diagnosis.json").read_text())
    (latest(tmp_path) / "diagnosis.json").unlink()
    assert tdiag("report", latest(tmp_path).name, cwd=tmp_path).stdout == again.stdout
    assert tdiag("report", "elsewhere", cwd=tmp_path).returncode == 2


def test_a_misspelt_option_is_pointed_out_and_handed_on(tmp_path: Path) -> None:
    name = script(tmp_path, "import sys; print(sys.argv[1:])")
    done = tdiag("run", "-q", name, "--profilng", cwd=tmp_path)
    assert done.stdout == "['--profilng']\n"
    said = "tdiag: --profilng is passed to the script; did you mean --profiling?"
    assert done.stderr.splitlines()[0] == said


def test_a_program_that_failed_is_told_so_once_without_advice(tmp_path: Path) -> None:
    done = tdiag("run", "-q", script(tmp_path, "raise SystemExit(3)"), cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.count("exit code 3") == 1 and "its own message" in done.stderr
    for wrong in ("dozen", "-I, -E", "Could not check", "Missing"):
        assert wrong not in done.stderr


def test_the_report_names_its_run_unless_it_is_the_latest(tmp_path: Path) -> None:
    name = script(tmp_path, "pass")
    assert "again      tdiag report --all" in tdiag("run", name, cwd=tmp_path).stderr
    first = latest(tmp_path).name
    tdiag("run", "-q", name, cwd=tmp_path)
    shown = tdiag("report", first, cwd=tmp_path).stdout
    assert f"again      tdiag report .tdiag/runs/{first} --all" in shown
