from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tacit.data.fetching import FetchFailed, fetch_files
from tacit.data.folders import DataFile, Source
from tacit.data.sources import DATASETS, fetch
from tests.data.writers import ADULT_ROW

FILES = {
    "adult.data": f"{ADULT_ROW}\n".encode() * 20_000,
    "adult.test": f"|1x3 Cross validator\n{ADULT_ROW}.\n".encode(),
}


@dataclass
class Server:
    """A web server on this machine; ``broken`` says what is wrong with its answers."""

    address: str
    broken: str = ""
    requests: list[str] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        name = handler.path.rpartition("/")[2]
        self.requests.append(name)
        if self.broken == "missing":
            handler.send_error(404)
            return
        content = FILES[name]
        if self.broken == "changed":
            content = content.replace(b"State-gov", b"Local-gov")
        handler.send_response(200)
        if self.broken != "of unknown length":
            handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2] if self.broken == "cut off" else content)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Server(f"http://127.0.0.1:{listener.server_port}/adult/")
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
    thread.start()
    yield served
    listener.shutdown()
    thread.join()
    listener.server_close()


def local(server: Server) -> Source:
    """Adult, published on the local server."""
    adult = DATASETS["adult"]
    served = tuple(
        replace(
            file,
            url=server.address + file.name,
            md5=hashlib.md5(FILES[file.name]).hexdigest(),
        )
        for file in adult.files
    )
    return replace(adult, files=served)


def ignore(_name: str, _done: int, _total: int | None) -> None:
    pass


def test_fetched_files_are_in_the_cache_and_are_loaded(server: Server, empty_cache: Path) -> None:
    folder = fetch_files(local(server), ignore)
    assert folder == empty_cache / "adult"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert len(DATASETS["adult"].load().train) == 20_000
    assert len(DATASETS["adult"].load(folder).train) == 20_000


def test_files_can_be_fetched_into_a_named_folder(server: Server, tmp_path: Path) -> None:
    assert fetch_files(local(server), ignore, tmp_path / "new") == tmp_path / "new" / "adult"
    assert len(DATASETS["adult"].load(tmp_path / "new").train) == 20_000


def test_progress_tells_the_bytes_of_each_file(server: Server) -> None:
    calls: list[tuple[str, int, int | None]] = []
    fetch_files(local(server), lambda *call: calls.append(call))
    for name, content in FILES.items():
        done = [call[1] for call in calls if call[0] == name]
        assert done == sorted(done)
        assert done[-1] == len(content)
        assert {call[2] for call in calls if call[0] == name} == {len(content)}
    assert len(calls) > 5, "the large file comes in pieces"


def test_a_server_need_not_announce_the_length(server: Server) -> None:
    server.broken = "of unknown length"
    calls: list[int | None] = []
    fetch_files(local(server), lambda _name, _done, total: calls.append(total))
    assert set(calls) == {None}


def test_what_is_there_already_is_not_fetched_again(server: Server) -> None:
    source = local(server)
    folder = fetch_files(source, ignore)
    server.requests.clear()
    fetch_files(source, lambda *_: pytest.fail("nothing is fetched"))
    assert server.requests == []
    (folder / "adult.test").write_bytes(b"damaged later")
    fetch_files(source, ignore)
    assert server.requests == ["adult.test"]
    assert (folder / "adult.test").read_bytes() == FILES["adult.test"]


def test_another_file_than_the_published_one_is_not_kept(server: Server, empty_cache: Path) -> None:
    server.broken = "changed"
    found = hashlib.md5(FILES["adult.data"].replace(b"State-gov", b"Local-gov")).hexdigest()
    expected = hashlib.md5(FILES["adult.data"]).hexdigest()
    with pytest.raises(FetchFailed, match=f"checksum {found}; expected is {expected}. Nothing was"):
        fetch_files(local(server), ignore)
    assert list((empty_cache / "adult").iterdir()) == []


def test_a_connection_that_breaks_leaves_nothing(server: Server, empty_cache: Path) -> None:
    server.broken = "cut off"
    total = len(FILES["adult.data"])
    with pytest.raises(FetchFailed, match=f"adult.data ended after {total // 2} of {total} bytes"):
        fetch_files(local(server), ignore)
    assert list((empty_cache / "adult").iterdir()) == []
    server.broken = ""
    fetch_files(local(server), ignore)
    assert len(DATASETS["adult"].load().train) == 20_000


def test_a_failed_fetch_leaves_a_good_file_alone(server: Server) -> None:
    folder = fetch_files(local(server), ignore)
    (folder / "adult.test").unlink()
    server.broken = "cut off"
    with pytest.raises(FetchFailed):
        fetch_files(local(server), ignore)
    assert (folder / "adult.data").read_bytes() == FILES["adult.data"]


def test_an_interrupted_fetch_leaves_nothing(server: Server, empty_cache: Path) -> None:
    def interrupt(_name: str, done: int, _total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_files(local(server), interrupt)
    assert list((empty_cache / "adult").iterdir()) == []


def test_a_file_has_its_name_only_when_it_is_whole(server: Server, empty_cache: Path) -> None:
    """So that not even a killed process leaves a part that would be taken for the file."""
    seen: list[bool] = []

    def watch(name: str, _done: int, _total: int | None) -> None:
        seen.append((empty_cache / "adult" / name).exists())

    fetch_files(local(server), watch)
    assert seen
    assert not any(seen)


def test_a_server_that_refuses_is_named(server: Server) -> None:
    server.broken = "missing"
    with pytest.raises(FetchFailed, match=r"/adult.data: HTTP Error 404.*check the network"):
        fetch_files(local(server), ignore)


def test_a_server_that_is_not_there_is_named() -> None:
    nowhere = Server("http://127.0.0.1:9/adult/")
    with pytest.raises(FetchFailed, match=r"127.0.0.1:9/adult/adult.data: .*refused.*try again"):
        fetch_files(local(nowhere), ignore)


def test_files_of_one_archive_are_fetched_once(server: Server) -> None:
    content = FILES["adult.test"]
    both = tuple(
        DataFile(name, ("x",), server.address + "adult.test", hashlib.md5(content).hexdigest())
        for name in ("images", "labels")
    )
    fetch_files(replace(local(server), files=both), ignore)
    assert server.requests == ["adult.test"]


def test_only_web_addresses_are_fetched(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    file = DataFile("secret", ("secret",), secret.as_uri(), "0" * 32)
    with pytest.raises(FetchFailed, match=r"file://.* is no web address"):
        fetch_files(replace(DATASETS["adult"], files=(file,)), ignore)


def test_published_files_are_fetched_over_https_with_a_checksum_each() -> None:
    fetchable = {name: source for name, source in DATASETS.items() if source.fetchable}
    assert set(DATASETS) - set(fetchable) == {"digits", "fraud"}
    for source in fetchable.values():
        for file in source.files:
            assert file.url
            assert file.url.startswith("https://")
            assert file.md5
            assert len(bytes.fromhex(file.md5)) == 16


@pytest.mark.parametrize("name", [name for name, source in DATASETS.items() if source.fetchable])
def test_a_fetched_file_is_looked_for_where_it_is_put(name: str) -> None:
    for file in DATASETS[name].files:
        assert file.url
        assert f"{name}/{file.url.rpartition('/')[2]}" in file.paths


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fraud", "fraud cannot be fetched: download creditcard.csv from https://www.kaggle.com/"),
        ("digits", "digits has no files to fetch: it comes with scikit-learn"),
        ("imagenet", "no data set is called 'imagenet'; allowed are digits, mnist"),
    ],
)
def test_what_cannot_be_fetched_says_why(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fetch(name, ignore)


@pytest.mark.parametrize("name", ["mnist", "adult"])
def test_the_real_files_have_the_published_checksums(
    real_files: Callable[[str], dict[str, Path]], name: str
) -> None:
    """MNIST is published gzipped and Adult plain."""
    found = real_files(name)
    for file in DATASETS[name].files:
        content = found[file.name].read_bytes()
        if name == "adult" and found[file.name].suffix == ".gz":
            content = gzip.decompress(content)
        assert hashlib.md5(content).hexdigest() == file.md5
