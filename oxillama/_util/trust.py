"""Trust in files and folders: whether another user could have written, or could replace, what is in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress

__all__ = ["OTHERS", "folder_fault", "link_fault", "owner_fault"]

OTHERS = stat.S_IWGRP | stat.S_IWOTH
MAX_LINKS = 40  # as Linux follows


def owner_fault(info: os.stat_result, owners: Collection[int] = ()) -> str | None:
    """Says how others could write a file or folder; None if it is of this process's user, of root or of one of
    `owners`, and no other user can write to it."""
    if info.st_uid not in (os.geteuid(), 0, *owners):
        return f"it belongs to another user (uid {info.st_uid})"
    if info.st_mode & OTHERS:
        return f"others can write to it (mode {stat.S_IMODE(info.st_mode):o})"
    return None


def folder_fault(path: str | os.PathLike[str]) -> str | None:
    """Why others could put files into a folder, or another folder into its place; None if they can't.

    The folder is of this user or of root, and no other user can write to it, nor to the folders on the way to it, but
    for folders as /tmp, in which users can replace only what is theirs, and those of the user's own group. Raises
    OSError if it can't be looked at.
    """
    fault = owner_fault(os.stat(path))
    if fault is not None:
        return f"{fault}: chmod go-w" if "write to it" in fault else fault
    for place in _on_the_way(os.path.abspath(path)):
        info = os.stat(place)
        if info.st_mode & OTHERS and not info.st_mode & stat.S_ISVTX and not _for_own_group(info):
            return f"others can write to {place} (mode {stat.S_IMODE(info.st_mode):o}), and replace what is in it"
    return None


def _on_the_way(path: str) -> Iterator[str]:
    """Every folder that a name is looked up in when an absolute path is followed, also by links."""
    left, place = [part for part in reversed(path.split("/")) if part], "/"
    for _ in range(MAX_LINKS * 256):
        if not left:
            return
        part = left.pop()
        if part in (".", ".."):
            place = os.path.dirname(place) if part == ".." else place
            continue
        yield place
        name = os.path.join(place, part)
        if os.path.islink(name):
            to = os.readlink(name)
            left += [one for one in reversed(to.split("/")) if one]
            place = "/" if os.path.isabs(to) else place
        else:
            place = name


def _for_own_group(info: os.stat_result) -> bool:
    """Whether only a group can write, which has the user's name and no other member."""
    if info.st_mode & stat.S_IWOTH:
        return False
    with suppress(ImportError, KeyError):
        import grp
        import pwd

        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(info.st_gid)
        return user.pw_gid == info.st_gid and group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name}
    return False


def link_fault(path: str | os.PathLike[str]) -> str | None:
    """Why a symbolic link is not to be written through: another user made it where others can write. None for others.

    Linux follows no such links in folders as /tmp (`fs.protected_symlinks`), which resolving a path goes round.
    """
    with suppress(OSError):
        info = os.lstat(path)
        folder = os.stat(os.path.dirname(os.path.abspath(path)))
        if stat.S_ISLNK(info.st_mode) and folder.st_mode & OTHERS and info.st_uid not in (os.geteuid(), 0):
            return f"it is a symbolic link of another user (uid {info.st_uid}) in a folder where others can write"
    return None
