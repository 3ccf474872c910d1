"""Names of secrets are told from names of counts, ids and paths of text tokens."""

from __future__ import annotations

import pytest

from kvyield_server.schemas.secrets import looks_secret

SECRETS = [
    *("api_key", "apiKey", "API_KEY", "api-key", "admin_api_key", "apikey", "openai_api_keys", "x-api-key"),
    *("token", "hf_token", "HF_TOKEN", "huggingface_token", "hf_hub_token", "github_token", "access_token"),
    *("accessToken", "auth_token", "bearer_token", "refresh_token", "session_token", "api_tokens"),
    *("hf_token_file", "server_token", "password", "PASSWORD", "db_password", "ssl_keyfile_password"),
    *("passwd", "passphrase", "pwd", "secret", "clientSecret", "secret_key", "aws_secret_access_key"),
    *("aws_access_key_id", "private_key", "authorization", "Authorization", "basic_auth", "credential"),
    *("google_credentials", "cookie", "jwt", "bearer"),
]
HARMLESS = [
    *("speculative_num_draft_tokens", "max_total_tokens", "max_tokens", "tokenizer", "tokenizer_path"),
    *("tokenizer_mode", "skip_tokenizer_init", "num_tokens", "max_num_batched_tokens", "eos_token"),
    *("bos_token", "pad_token", "eos_token_id", "speculative_token_map", "image_token_id"),
    *("num_continuous_decode_steps", "bytes_per_token", "kv_bytes_per_token", "page_size", "ssl_keyfile"),
    *("key_value_dtype", "keep_alive", "author", "kv_cache_dtype", "max_prefill_tokens"),
    *("enable_tokenizer_batch_encode", "stream_interval", "tokens", "mem_fraction_static", "", "_"),
    *("cache_max_entry_count", "max_prefill_token_num", "cudagraph_num_of_warmups", "secretariat_mode"),
    *("keystone", "return_token_ids"),
]


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_seen(name: str) -> None:
    """Whatever the spelling, a key, token, password or credential is seen as such."""
    assert looks_secret(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_text_tokens_are_no_secrets(name: str) -> None:
    """Engines' own flags about text tokens, tokenizers and keys of a cache are kept."""
    assert not looks_secret(name)
