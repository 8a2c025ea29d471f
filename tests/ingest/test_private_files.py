"""Data folders: created for their owner, and refused with symbolic links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamgauge.ingest.private_files import prepare_data_folder


def test_folder_is_created_and_made_private(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    prepare_data_folder(data)
    assert data.stat().st_mode & 0o777 == (data / "run").stat().st_mode & 0o777 == 0o700
    data.chmod(0o755)
    prepare_data_folder(data)
    assert data.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "name",
    ["run", "run/tap.json", "log/w0", "catalog.sqlite", "catalog.sqlite-wal", "analyze.lock", "client.key"],
)
def test_link_in_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    link = tmp_path / "data" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    with pytest.raises(
        OSError, match=rf"^cannot use the data folder .*{name} is a symbolic link\. .*--data$"
    ):
        prepare_data_folder(tmp_path / "data")
    assert not list(target.iterdir())


def test_own_links_to_another_disk_are_used(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    for name in ("data", "log", "tables"):
        (disk / name).mkdir(parents=True)
    (tmp_path / "data").symlink_to(disk / "data")
    for name in ("log", "tables"):
        (disk / "data" / name).symlink_to(disk / name)
    prepare_data_folder(tmp_path / "data")
    assert (disk / "data" / "run").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create a link of another user")
def test_link_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path.parent)
    os.chown(tmp_path / "log", 65534, 65534, follow_symlinks=False)
    with pytest.raises(OSError, match="log is a symbolic link"):
        prepare_data_folder(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create a folder of another user")
@pytest.mark.parametrize("name", [".", "run", "log", "tables"])
def test_folder_of_another_user_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / name).chmod(0o777)
    os.chown(tmp_path / name, 12345, 12345)
    with pytest.raises(OSError, match=r"^cannot use the data folder .* belongs to user 12345\. .*--data$"):
        prepare_data_folder(tmp_path)
