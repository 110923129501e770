"""Coverage-guided fuzzing of one reader: `python tests/fuzz/guided.py READER INPUTS [SEED]`.

Atheris counts the branches of evertally's own code and keeps the inputs that reach new ones, so that it
walks on from there. Exits with 0 where no input broke the reader.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import atheris  # type: ignore[import-untyped]  # it has no types

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Instrument, then fuzz."""
    name, inputs, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "1"
    sys.path.insert(0, str(ROOT))
    with atheris.instrument_imports(include=["evertally"]):
        from tests.fuzz.attack import fire, folder_in_memory
        from tests.fuzz.readers import READERS
    with folder_in_memory("evertally-guided-") as place:
        folder, corpus = Path(place), Path(place) / "corpus"
        corpus.mkdir()
        reader = READERS[name](folder)
        for number, good in enumerate(reader.corpus):
            (corpus / str(number)).write_bytes(good)
        longest = 2 * max(len(good) for good in reader.corpus)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        arguments = [f"-runs={inputs}", f"-seed={seed}", f"-max_len={max(4096, longest)}", "-rss_limit_mb=0"]
        arguments += ["-print_final_stats=1", "-verbosity=1", "-timeout=120"]
        print(f"{name}: {inputs} inputs, {before >> 10} MiB before", flush=True)
        atheris.Setup([sys.argv[0], *arguments, str(corpus)], lambda data: fire(reader, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
