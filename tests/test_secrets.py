"""Passwords, keys and signed addresses are neither written nor printed."""

import json
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.provisional import domains

from oodlit import Gate, Results
from oodlit.base.secrets import MASK, is_secret, mask, mask_address, mask_text, mask_words, mask_yaml
from oodlit.cli.main import main
from oodlit.datamodules.shards import Cache, ShardSource
from oodlit.errors import DataError, InvalidArgumentError, MissingExtraError
from oodlit.report.page import render
from oodlit.results.run_record import ImageRunRecord, RunRecord
from tests.gate.support import digits
from tests.report.problems import make_results

SECRET = "hunter2/x"
secrets = st.text("abcXYZ0189+/=-_!$", min_size=1).map(lambda text: f"Zq{text}qZ")
names = st.sampled_from(["password", "api_key", "aws_access_key_id", "secretKey", "hf_token", "sas", "WANDB_API_KEY"])


@given(domains(), secrets, secrets)
def test_user_info_and_query_of_addresses_are_masked(host: str, password: str, signature: str) -> None:
    address = f"https://me:{password}@{host}/a.tar?X-Amz-Signature={signature}"
    assert mask_address(address) == f"https://{MASK}@{host}/a.tar?{MASK}"
    text = mask_text(f"cannot read '{address}': not found")
    assert text == f"cannot read 'https://{MASK}@{host}/a.tar?{MASK}': not found"
    assert mask_text(text) == text


@given(domains(), st.sampled_from(["", ":8080"]), st.from_regex(r"(/[a-z0-9@._-]{1,8})*/?", fullmatch=True))
def test_addresses_without_secrets_stay(host: str, port: str, path: str) -> None:
    assert mask_address(f"https://{host}{port}{path}") == f"https://{host}{port}{path}"


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("s3://AKIA:a/b+c@bucket/x.tar", "s3://***@bucket/x.tar"),
        ("https://token@host/a", "https://***@host/a"),
        ("https://[::1]:80/a@b", "https://[::1]:80/a@b"),
        ("https://host/a#access_token=5", "https://host/a#***"),
        ("https://host/a#part-2", "https://host/a#part-2"),
        ("postgresql+psycopg2://u:p@host:5432/db", "postgresql+psycopg2://***@host:5432/db"),
        ("https:/me:word@host/a?sig=5", "https:/***@host/a?***"),
        ("simplecache::https://me:word@host/a", "simplecache::https://***@host/a"),
        ("C:\\data\\a?.tar", "C:\\data\\a?.tar"),
        ("C:/data@home/a?.tar", "C:/data@home/a?.tar"),
    ],
)
def test_kinds_of_addresses(address: str, masked: str) -> None:
    assert mask_address(address) == masked


@given(names, secrets)
def test_values_of_names_are_masked_in_every_form(name: str, secret: str) -> None:
    nested = {"logger": [{"init_args": {name: secret, "more": {name: [secret]}}}], "options": [[name, secret]]}
    for masked in (
        mask(nested),
        mask_yaml(yaml.safe_dump(nested)),
        mask_text(f"{name}={secret}, '{name}': '{secret}'"),
        mask_words(["run", f"--logger.init_args.{name}={secret}", f"--logger.{name}", secret, f"{name}={secret}"]),
        mask_words(["run", "--logger", f"{{init_args: {{{name}: '{secret}'}}}}", f"--options+=[[{name}, '{secret}']]"]),
    ):
        assert secret not in str(masked)
        assert MASK in str(masked)
    assert mask(mask(nested)) == mask(nested)


def test_other_values_stay() -> None:
    plain = {"tokenizer": "bpe", "num_tokens": 8, "key_dim": 64, "class_token": True, "keys": ["a"], "password": None}
    assert mask(plain) == plain
    assert mask({"password": 1234, "token": 0}) == {"password": MASK, "token": 0}
    text = "far/key: damaged; key 'a' occurs twice; Sample(key='b'); val/secret: truncated"
    assert mask_text(text) == text
    words = ["oodlit", "evaluate", "--data={class_path: A,  init_args: {root: b}}", "--tpr", "0.9", "--key_dim=3"]
    assert mask_words(words) == words
    assert mask_text("Authorization: Bearer abc") == "Authorization: ***"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("ValueError: token=hunter2", "ValueError: token=***"),
        ("env:WANDB_API_KEY=hunter2", "env:WANDB_API_KEY=***"),
        ("data: {token: hunter2, size: 3}", "data: {token: ***, size: 3}"),
        ("message='password=hunter2'", "message='password=***'"),
        (r'{"password": "a\"hunter2", "b": 1}', '{"password": "***", "b": 1}'),
        (r'"{\"password\": \"hunter2\"}"', r'"{\"password\": ***}"'),
        ("token=b'hunter2', b=1", "token=***, b=1"),
        ("token='hunter2 ...", "token='***'"),
        ("credentials={'user': {'id': 'a'}, 'word': 'hunter2'}, b=1", "credentials=***, b=1"),
        ("options=(('secret', 'hunter2'), ('anon', False))", "options=(('secret', '***'), ('anon', False))"),
        ("found ['token', 'label', 'group']", "found ['token', 'label', 'group']"),
        ("curl --password hunter2 --user a ended with 1", "curl --password *** --user a ended with 1"),
        (
            "Command '['a', '--hub-token', 'hunter 2', '-q']' failed",
            "Command '['a', '--hub-token', '***', '-q']' failed",
        ),
        ('run --logger.api_key "hunter 2" again', 'run --logger.api_key "***" again'),
        ("--key_dim 3 --token --quiet", "--key_dim 3 --token --quiet"),
        ("rsync me:hunter2@host:/data failed", "rsync ***@host:/data failed"),
        ("proxy=me:hun@ter2@10.0.0.1:80", "proxy=***@10.0.0.1:80"),
        ("//me:hunter2@host/a, (you:hunter2@host)", "//***@host/a, (***@host)"),
        ("git@github.com:a/b, hf-hub:timm/a@main", "git@github.com:a/b, hf-hub:timm/a@main"),
        ("val/a:b@c.jpg at 12:30, Error: a@b.org", "val/a:b@c.jpg at 12:30, Error: a@b.org"),
    ],
)
def test_values_in_messages(text: str, masked: str) -> None:
    assert mask_text(text) == masked
    assert mask_text(masked) == masked


@pytest.mark.parametrize("password", ['pa"hunter2', "pa hunter2", "pa<hunter2"])
def test_addresses_in_settings_may_have_any_password(password: str) -> None:
    assert mask({"root": f"https://me:{password}@host/a"}) == {"root": f"https://{MASK}@host/a"}


@given(
    st.text() | st.text("a:@/-= '\"[]*.") | st.lists(st.sampled_from(["--token", " ", "a:b@", "c", "//"])).map("".join)
)
def test_masking_accepts_any_text(text: str) -> None:
    assert mask_text(mask_text(text)) == mask_text(text)
    assert isinstance(is_secret(text), bool)
    mask_yaml(text)
    assert len(mask_words([text, text])) == 2


def test_the_record_of_a_run_and_its_page_mask_secrets() -> None:
    signed = f"https://me:{SECRET}@host/a.tar?sig={SECRET}"
    paper = {"title": "T", "authors": "A", "venue": "V", "year": 1, "url": "https://openreview.net/forum?id=KkazG4lgKL"}
    entries = {
        "argv": ["run.py", "--token", SECRET, f"--data={signed}"],
        "config": yaml.safe_dump({"logger": {"api_key": SECRET}, "data": signed}),
        "warnings": [f"shard {signed}: stray file"],
        "skipped": [{"key": "far/token", "reason": f"{signed}: damaged"}],
        "cache": {"folder": signed},
        "detector_settings": {"mine": {"class_path": "a.B", "init_args": {"hub_token": SECRET}}},
        "references": {"mine": paper},
        "not_applicable": {"token": "no training images"},
        "mine": {"password": SECRET},
        "key": "0a1b",
    }
    for record in (RunRecord.of(entries), RunRecord(argv=entries["argv"], warnings=entries["warnings"])):  # type: ignore[arg-type]
        assert SECRET not in json.dumps(record.entries())
    record = RunRecord.of(entries)
    assert record.references["mine"].url == paper["url"]
    assert (record.key, record.skipped[0].key) == ("0a1b", "far/token")
    assert record.not_applicable == {"token": "no training images"}
    assert ImageRunRecord.of(record.entries()).entries() == ImageRunRecord.of(entries).entries()
    assert SECRET not in render({"run": make_results(("msp", "mine"), run=entries)})


def test_errors_about_shards_mask_addresses(tmp_path: Path) -> None:
    signed = f"http://me:{SECRET}@127.0.0.1:1/set/a.tar?sig={SECRET}"
    cache = Cache(tmp_path, attempts=1, storage_options=(("secret", SECRET),))
    assert SECRET not in repr(cache)
    for shards, kind in (
        (signed, DataError),
        ([signed, signed], DataError),
        (signed.replace("a.tar", ""), DataError),
        (signed.replace("http", "pipe"), InvalidArgumentError),
        (signed.replace("http", "abfs"), MissingExtraError),
    ):
        with pytest.raises(kind) as caught:
            ShardSource(shards, cache=cache)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(DataError) as caught:
        cache.retry(lambda: (_ for _ in ()).throw(FileNotFoundError(signed)), signed)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


RUN = """
backbone: {class_path: module_with_keys.Network, init_args: {width: 5}}
data: {class_path: tests.gate.support.digits, init_args: {root: shards, max_images: 20}}
logger:
- class_path: module_with_keys.Remote
  init_args: {save_dir: logs, api_key: hunter2/x, uri: "https://me:hunter2/x@host/"}
detectors: [MSP]
accelerator: cpu
out: results
"""
MODULE = """
import warnings
from pytorch_lightning.loggers import CSVLogger
from torch import nn

class Network(nn.Sequential):
    def __init__(self, width: int, hub_token: str = ""):
        super().__init__(nn.Conv2d(3, width, 8), nn.ReLU(), nn.Flatten(), nn.Linear(width, 7))
        self.num_features = width

class Remote(CSVLogger):
    def __init__(self, save_dir: str, api_key: str, uri: str):
        assert (api_key, uri) == ("hunter2/x", "https://me:hunter2/x@host/")
        super().__init__(save_dir)

    def log_metrics(self, *args, **kwargs):
        raise OSError(f"https://me:hunter2/x@host/?key=hunter2/x is not reachable")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The current folder, with a configuration and the module that it names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("module_with_keys.py").write_text(MODULE)
    Path("run.yaml").write_text(RUN)
    yield
    sys.modules.pop("module_with_keys", None)


@pytest.mark.usefixtures("folder")
def test_a_run_and_its_gate_write_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digits(Path("shards"), max_images=20)
    words = ["evaluate", "--config", "run.yaml", "--backbone.init_args.hub_token", SECRET]
    monkeypatch.setattr(sys, "argv", ["/home/me/bin/oodlit", *words])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main([*words, "--print_config"]) == 0
        assert main(words) == 1  # the logger failed
        assert main([*words, "--debug"]) == 1
    output = "".join(capsys.readouterr())
    assert "is not reachable" in output
    assert SECRET not in output
    files = [path for path in Path("results").rglob("*") if path.is_file()]
    assert {"run.json", "report.html"} <= {path.name for path in files}
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert Results.load("results").run.argv == ["oodlit", *words[:-1], MASK]
    with pytest.raises(InvalidArgumentError, match=r"a secret, which the record masks .* call Gate\.load"):
        Gate.load("results")


@pytest.mark.usefixtures("folder")
def test_a_saved_gate_keeps_seed_network_and_transform_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("module_with_keys.py").write_text(MODULE.replace("    def log_metrics", "    def no_longer"))
    Path("run.yaml").write_text(RUN + "seed: 3\n")
    assert main(["evaluate", "--config", "run.yaml"]) == 0, capsys.readouterr().err
    Gate.load("results").save("gate")
    config = json.loads(Path("gate", "gate.json").read_text())["backbone"]["config"]
    assert yaml.safe_load(config).keys() <= {"seed", "backbone", "data"}
    assert Gate.load("gate").record.backbone.configuration["seed"] == 3
    assert not [word for word in ("logger", "shards", "results", "digits") if word in config]
