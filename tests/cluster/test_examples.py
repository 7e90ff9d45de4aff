"""The examples for Kubernetes and SLURM: their syntax, and that they call pathx with options that it has."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ROOT
from typer.main import get_command

from pathx.cli import app

EXAMPLES = ROOT / "examples" / "cluster"


def check_call(words: list[str]) -> None:
    """A call of pathx that the command line takes."""
    assert words[0] == "pathx"
    command: Any = get_command(app).commands[words[1]]  # type: ignore[attr-defined]
    command.make_context("pathx", words[2:])


def test_the_job_for_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with Ray: pip install 'pathx-relu[ray]'")
    (job,) = yaml.safe_load_all((EXAMPLES / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    folder, _, call = shlex.split(job["spec"]["entrypoint"])[2].partition(" && ")
    check_call(shlex.split(call))
    groups = [job["spec"]["rayClusterSpec"]["headGroupSpec"], *job["spec"]["rayClusterSpec"]["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        (mount,) = container["volumeMounts"]
        assert folder == f"cd {mount['mountPath']}"
        assert [volume["name"] for volume in pod["volumes"]] == [mount["name"]]


def test_the_script_for_slurm() -> None:
    script = EXAMPLES / "slurm.sh"
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    checked = subprocess.run([bash, "-n", str(script)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    text = script.read_text()
    assert text.startswith("#!/bin/bash\n")
    call = " ".join(text.rpartition(" -- ")[2].split("\\\n"))
    check_call(shlex.split(call))


def test_the_options_of_ray_are_there() -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'pathx-relu[ray]'")
    from ray.scripts.symmetric_run import symmetric_run

    named = {option for one in symmetric_run.params for option in one.opts}
    assert {"--address", "--min-nodes"} <= named


def test_the_page_of_clusters_names_both() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    assert all(Path("examples/cluster", file.name).as_posix() in page for file in EXAMPLES.iterdir())
