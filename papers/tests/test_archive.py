"""Archives: members by name, and every way a file can be wrong refused with its name."""

import zipfile

import pytest

from orbitlens.errors import InputError
from orbitlens_papers.archive import open_archive


def zipped(file, members):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in members.items():
            out.writestr(name, content)
    return file


def opened(file, *, most_members=3, most_bytes=100):
    return open_archive(
        file, most_members=most_members, most_bytes=most_bytes, advice="Get it anew."
    )


def test_members_are_read_by_name_and_folders_are_none(tmp_path):
    file = zipped(tmp_path / "a.zip", {"b/": "", "b/two": "2", "one": b"\x00" * 100})
    with opened(file) as archive:
        assert archive.names == ["b/two", "one"]
        assert archive.read("b/two") == b"2"
        assert archive.read("one") == bytes(100)


@pytest.mark.parametrize(
    ("name", "says"),
    [("large", "large has 101 bytes; expected 100 at most"), ("gone", "gone is named but not")],
)
def test_a_member_that_is_too_much_or_missing_is_refused(tmp_path, name, says):
    file = zipped(tmp_path / "a.zip", {"large": b"0" * 101})
    with opened(file) as archive, pytest.raises(InputError, match=says) as caught:
        archive.read(name)
    assert "a.zip" in str(caught.value) and "Get it anew." in str(caught.value)


def test_a_member_that_is_damaged_is_refused(tmp_path):
    file = zipped(tmp_path / "a.zip", {"one": bytes(range(90))})
    content = bytearray(file.read_bytes())
    content[40:60] = bytes(20)
    file.write_bytes(content)
    with opened(file) as archive, pytest.raises(InputError, match="one cannot be read"):
        archive.read("one")


def test_too_many_members_are_refused(tmp_path):
    file = zipped(tmp_path / "a.zip", {str(k): "" for k in range(4)})
    with pytest.raises(InputError, match="4 members; expected 3 at most"), opened(file):
        pass


@pytest.mark.parametrize("content", [b"", b"text", None], ids=["empty", "text", "missing"])
def test_what_is_no_archive_is_refused(tmp_path, content):
    file = tmp_path / "a.zip"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"not a zip file .* Get it anew"), opened(file):
        pass
