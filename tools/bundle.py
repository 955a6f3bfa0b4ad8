"""Pack the desktop bundle (.mcpb). The same source always yields the same bytes."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from quorate import __version__

ROOT = Path(__file__).parent.parent
NO_TIME = (1980, 1, 1, 0, 0, 0)


def main() -> int:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    sys.stdout.write(f"{pack(target)}\n")
    return 0


def pack(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    bundle = folder / f"quorate-{__version__}.mcpb"
    with zipfile.ZipFile(bundle, "w") as archive:
        for name, file in sorted(contents().items()):
            entry = zipfile.ZipInfo(name, NO_TIME)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes(), compresslevel=9)
    return bundle


def contents() -> dict[str, Path]:
    """Name in the bundle -> file."""
    projects = [ROOT, *sorted(file.parent for file in (ROOT / "packages").glob("*/pyproject.toml"))]
    files = [project / name for project in projects for name in ("LICENSE", "README.md", "pyproject.toml")]
    files += [file for project in projects for file in (project / "src").rglob("*") if _is_source(file)]
    return {
        "manifest.json": ROOT / "packaging" / "mcpb" / "manifest.json",
        **{file.relative_to(ROOT).as_posix(): file for file in files},
    }


def _is_source(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts and ".egg-info" not in str(file)


if __name__ == "__main__":
    sys.exit(main())
