"""Files and folders that only their owner can read (modes 0600 and 0700).

- Writes are atomic: a reader sees the old content or the new content, never a part of it.
- Another user must not redirect our writes. So the data folder and its folders belong to this user or root, and have no
  symbolic links, except `log` and `tables` on another disk, which this user or root created. The data folder itself may
  be a link.

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
    """Create DATA and DATA/run if they are missing, and make DATA private. Raises OSError with one line.

    A full disk is no error here: the tap serves, and whatever needs a folder creates it once there is room.
    """
    try:
        make_private_folder(data)
        forbidden = _forbidden(data)
        if forbidden is None:
            run_dir = data / "run"
            make_private_folder(run_dir)
            for folder in (data, run_dir):
                if folder.stat().st_uid == os.geteuid():
                    folder.chmod(0o700)
                if not os.access(folder, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as e:
        if e.errno == errno.ENOSPC:
            return
        raise OSError(
            f"cannot write to the data folder {data}: {e.strerror}. Choose another with --data"
        ) from None
    if forbidden is not None:
        raise OSError(f"cannot use the data folder {data}: {forbidden}, or choose another folder with --data")


def _forbidden(data: Path) -> str | None:
    """What is wrong with the folder, and what to do."""
    trusted = (0, os.geteuid())
    for folder in (data, *(data / name for name in ("run", *MOVABLE))):
        if not folder.is_dir():
            continue
        owner = folder.stat().st_uid
        if owner not in trusted:
            return f"{folder} belongs to user {owner}. Run as that user, change the owner"
        for entry in os.scandir(folder) if folder != data / "tables" else ():
            if entry.is_symlink():
                owner = entry.stat(follow_symlinks=False).st_uid
                if folder != data or entry.name not in MOVABLE or owner not in trusted:
                    return f"{entry.path} is a symbolic link. Replace it with its target"
    return None


def make_private_folder(path: Path) -> None:
    """Create a folder and its parents. An existing folder keeps its mode."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Write or replace a file, which has one writer. On an error the old file stays and no temporary file is left."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    try:
        # `x`: a link that another user has put there is never followed.
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # an error of an open file has none
        raise


def write_json(path: Path, value: object) -> None:
    """Write or replace a JSON file."""
    write_private(path, json.dumps(value).encode())
