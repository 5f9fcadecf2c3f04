"""Prints the project's files that have a frame on the stack while a round of ``quickstart:smoke`` is traced.

python tests/campaigns/frames.py
"""

import sys
import tempfile
import traceback
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from experiments import launch  # noqa: E402
from fedjax_collapse.nn.model import Model  # noqa: E402


def main() -> None:
    deepest, apply = [], Model.apply

    def traced(self, *arguments, **options):
        stack = dict.fromkeys(Path(frame.filename) for frame in traceback.extract_stack())
        own = [path for path in stack if path.is_relative_to(ROOT) and path != Path(__file__).resolve()]
        deepest[:] = max(deepest, own, key=len)
        return apply(self, *arguments, **options)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Model, "apply", traced):
        launch.main(["--config=quickstart:smoke", f"--workdir={folder}/study", "--compilation_cache="])
    print("\n".join(str(path.relative_to(ROOT)) for path in deepest), f"\n{len(deepest)} files")


if __name__ == "__main__":
    main()
