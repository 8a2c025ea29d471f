"""Files and folders that only their owner can read (modes 0600 and 0700).

- Writes are atomic: a reader sees the old content or the new content, never a part of it.
- A data folder that another user prepared must not redirect our writes. So it has no symbolic links, except `log` and
  `tables` on another disk, which this user or root created. The data folder itself may be a link.

Every function raises OSError.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

MOVABLE = ("log", "tables")
"""Folders in a data folder that may be links."""


def prepare_data_folder(data: Path) -> None:
    """Create DATA and DATA/run if they are missing, and make DATA private. Refuses links. Raises OSError with one line."""
    try:
        make_private_folder(data)
        link = _forbidden_link(data)
        if link is None:
            run_dir = data / "run"
            make_private_folder(run_dir)
            for folder in (data, run_dir):
                if folder.stat().st_uid == os.geteuid():
                    folder.chmod(0o700)
                if not os.access(folder, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as e:
        raise OSError(
            f"cannot write to the data folder {data}: {e.strerror}. Choose another with --data"
        ) from None
    if link is not None:
        raise OSError(
            f"cannot use the data folder {data}: {link} is a symbolic link. Replace it with its target, or choose another "
            "folder with --data"
        )


def _forbidden_link(data: Path) -> Path | None:
    for folder in (data, data / "run", data / "log"):
        for entry in os.scandir(folder) if folder.is_dir() else ():
            if entry.is_symlink():
                owner = entry.stat(follow_symlinks=False).st_uid
                if folder != data or entry.name not in MOVABLE or owner not in (0, os.geteuid()):
                    return Path(entry.path)
    return None


def make_private_folder(path: Path) -> None:
    """Create a folder and its parents. An existing folder keeps its mode."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Write or replace a file, which has one writer. On an error the old file stays and no temporary file is left."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: object) -> None:
    """Write or replace a JSON file."""
    write_private(path, json.dumps(value).encode())
