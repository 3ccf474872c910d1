"""One redactor for all that leaves the host or is shown: every shape that a key comes in."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvyield
from kvyield._secrets import REDACTED, looks_secret, redacted
from kvyield.engines._text import quote

SECRET = "Zq3-hush_9fK.x+1/Lw"
NAMES = (
    *("api_key", "API_KEY", "apiKey", "api-key", "admin_api_key", "openai_api_key", "hf_token", "HF_TOKEN", "token"),
    *("password", "passwd", "db_password", "mypassword", "secret", "client_secret", "AWS_SECRET_ACCESS_KEY", "pwd"),
    *("aws_secret_access_key", "access_key", "private_key", "credential", "credentials", "session_token", "auth_token"),
    *("authorization", "x-api-key", "token_value", "my_token_str", "bearer", "cookie", "jwt", "passphrase"),
    *("github_token", "secret_name", "credential_path", "apikey", "encryption_key", "signing_key", "ssh_key"),
)
FORMS = (
    *("{name}={value}", "{name}='{value}'", '{name}="{value}"', "{name}: {value}", "'{name}': '{value}'"),
    *('"{name}": "{value}"', "{name} = {value}", "({name}='{value}', tp_size=8)", "{{'{name}': '{value}', 'a': 1}}"),
    *("env: {name}={value} python -m x", "?{name}={value}&x=1", "{name}:{value}", '{{"{name}":"{value}"}}'),
)
OPTIONS = ("--api-key", "--hf-token", "--admin-api-key", "--password")
OPTION_FORMS = (
    "{name} {value}",
    "{name}={value}",
    "['{name}', '{value}', '--x']",
    '{name} "{value}"',
    "{name}  {value}",
)
SHAPES = (
    *("sk-proj-abcdefghij0123456789", "sk_live_abcdefghij012345", "sk-ant-api03-abcdefghijk", "hf_abcdefghijklmnop"),
    *("ghp_abcdefghijklmnop", "gho_abcdefghijklmnop", "github_pat_abcdefghijklmnop", "glpat-abcdefghijklmnop"),
    *("xoxb-123456789012-abcdef", "nvapi-abcdefghijklmnop", "npm_abcdefghijklmnop", "gsk_abcdefghijklmnop"),
    *("r8_abcdefghijklmnop", "dckr_pat_abcdefghijklmnop", "kvy_abcdefghijklmnop", "AKIAABCDEFGHIJKLMNOP"),
    *("ASIAABCDEFGHIJKLMNOP", "AIzaSyabcdefghijklmnopqrstuvw", "ya29.abcdefghijklmnop"),
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
)
ADDRESSES = (
    *("postgresql://user:{0}@db:5432/x", "https://:{0}@host/", "redis://{0}:x@host", "http://u:{0}@h/v1?x=1"),
    *("https://h/a?sig={0}&se=1", "https://h/a?X-Amz-Signature={0}", "https://abcdefghijklmnopqrst@github.com/x"),
    *("postgresql://user:p@{0}@db/x", "postgresql://user:p/{0}@db/x"),
)
HEADERS = ("Authorization: Bearer {0}", "authorization=bearer {0}", "'Authorization': 'Basic {0}'", "Bearer {0}")
HARMLESS = (
    *("max_total_num_tokens=192406", "token usage: 0.93", "#new-token: 8192, #cached-token: 0", "tp_size=8"),
    *("tokenizer_path='moonshotai/Kimi-K2.6'", "eos_token_id=128001", "api_key=None", "hf_token: null", "secret=''"),
    *("max_prefill_tokens=16384", "KV Cache is allocated. #tokens: 192406", "tokenizer_mode='auto'", "api_key=[]"),
    *("http://127.0.0.1:30000/v1/models", "bos_token='<s>'", "skip_tokenizer_init=False", "num_key_value_heads=8"),
    *(
        "kv_cache_dtype='fp8_e4m3'",
        "model_path='/models/sk'",
        "page_size=1",
        "the key to it",
        "chunked_prefill_size=8192",
    ),
)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_assigned_to_a_secrets_name_is_taken_out(name: str) -> None:
    """Whatever form the assignment has: of shells, of Python, of JSON, of headers, of addresses."""
    for form in FORMS:
        text = form.format(name=name, value=SECRET)
        assert SECRET not in redacted(text), text
        assert SECRET not in quote(text), text


def test_options_of_command_lines() -> None:
    """With a blank, with an equals sign, or as a list of words."""
    for name, form in product(OPTIONS, OPTION_FORMS):
        text = f"python -m sglang.launch_server {form.format(name=name, value=SECRET)} --tp 8"
        assert SECRET not in redacted(text), text


@pytest.mark.parametrize("shape", SHAPES)
def test_keys_are_known_by_their_shape(shape: str) -> None:
    """Without any name beside them, alone, in a sentence, quoted, or in an address."""
    for text in (shape, f"got {shape}.", f"'{shape}'", f"({shape})", f"x={shape},", f"https://h/p?q={shape}"):
        assert shape not in redacted(text), text
        assert shape[:20] not in redacted(text), text


def test_addresses_and_headers() -> None:
    """Passwords in addresses, signatures in queries, tokens in headers; also with an unescaped @ or / in a password."""
    for form in (*ADDRESSES, *HEADERS):
        text = f"connecting to {form.format('hush9hush9hush9')} now"
        shown = redacted(text)
        assert "hush9" not in shown, text
        assert "abcdefghijklmnopqrst@" not in shown, text
        assert REDACTED in shown


def test_private_keys_are_taken_out_whole() -> None:
    """A key in PEM form, cut off or not."""
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQ"
    for end in ("\n-----END PRIVATE KEY-----", ""):
        text = f"key -----BEGIN RSA PRIVATE KEY-----\n{body}{end}"
        assert "MIIEv" not in redacted(text)
        assert "BKcwgg" not in redacted(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    """Counts and kinds of text tokens, values that say nothing, plain addresses."""
    assert redacted(text) == text


@settings(deadline=None)
@given(st.text(max_size=300))
def test_redacting_twice_is_redacting_once(text: str) -> None:
    """Whatever the text, nothing is taken out of what was redacted already."""
    once = redacted(text)
    assert redacted(once) == once


def test_a_name_that_is_refused_as_a_flag_is_redacted_as_an_assignment() -> None:
    """The strict rule for names of flags is inside the wide one for lines."""
    for name in (name for name in NAMES if looks_secret(name)):
        assert SECRET not in redacted(f"{name}={SECRET}")


def test_there_is_one_redactor() -> None:
    """No other module of the client has a pattern of its own for secrets."""
    root = Path(kvyield.__file__).parent
    for file in root.rglob("*.py"):
        texts = [node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)]
        patterns = [text for text in texts if isinstance(text, str) and "passw" in text.lower() and "|" in text]
        assert not patterns or file.name == "_secrets.py", file
