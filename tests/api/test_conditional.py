"""An answer that the caller has already is not sent again."""

from __future__ import annotations

from api.conftest import Client
from api.samples import NAMES, start


def test_an_unchanged_answer_is_not_sent_again(client: Client) -> None:
    """With its ETag an answer is 304 without a body; any commit that changes it makes it 200 again."""
    for number in (1, 2):
        client.post("/observations", json=start(number))
    query = {**NAMES, "target_tokens": 200000}
    for path, params in (("/recommend", query), ("/observations", {}), ("/pairs", {})):
        first = client.get(path, params=params)
        etag = first.headers["etag"]
        for header in (etag, f'"x", W/{etag}', "*"):
            again = client.get(path, params=params, headers={"If-None-Match": header})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        client.post("/observations", json=start(3, id=None, host=path))
        assert client.get(path, params=params, headers={"If-None-Match": etag}).status_code == 200
