"""A folder's files as arrays."""

import errno
import os

import numpy as np
import pytest

from echo_shm.adapters.folders import read_files, write_files


def test_files_come_back_with_their_holes(tmp_path):
    """What is between the holes is read, and nothing else."""
    (tmp_path / "one" / "deep").mkdir(parents=True)
    (tmp_path / "one" / "empty").touch()
    with (tmp_path / "one" / "deep" / "file").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"here")
        file.truncate(3 << 20)
    files = read_files(str(tmp_path / "one"))
    assert sum(len(part) for one in files.values() for part in one["parts"].values()) < 1 << 20
    write_files(str(tmp_path / "two"), files)
    for name in files:
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert set(files) == {"empty", "deep/file"}


def test_a_file_that_cannot_be_read_is_no_empty_file(tmp_path, monkeypatch):
    """An error of the disk is raised, wherever it comes."""
    (tmp_path / "file").write_bytes(b"here")

    def fail(*args, **kwargs):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for module, name in ((np, "fromfile"), (os, "lseek")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(OSError, match="Input/output error"):
                read_files(str(tmp_path))
