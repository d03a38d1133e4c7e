# SPDX-License-Identifier: Apache-2.0
"""The list of models and a single model, as the clients of OpenAI and Anthropic request them."""

import datetime

import anthropic
import openai
import pytest

NAMES = ["plain", "org/with a slash", "ünï?#%"]


@pytest.fixture(scope="module")
def named(start, folder):
    return start(str(folder / "tiny"), "--api-key", "secret", *(word for name in NAMES for word in ("--served-model-name", name)))


def test_with_openais_client(named):
    client = openai.OpenAI(base_url=named.url + "/v1", api_key="secret", max_retries=0)
    assert [model.id for model in client.models.list()] == NAMES
    for name in NAMES:
        model = client.models.retrieve(name)
        assert model.id == name and model.object == "model" and model.created > 0 and model.owned_by
    with pytest.raises(openai.NotFoundError, match="plain"):
        client.models.retrieve("nobody")
    with pytest.raises(openai.AuthenticationError, match="x-api-key"):
        openai.OpenAI(base_url=named.url + "/v1", api_key="wrong", max_retries=0).models.list()


def test_with_anthropics_client(named):
    client = anthropic.Anthropic(base_url=named.url, api_key="secret", max_retries=0)
    page = client.models.list(limit=20)
    assert [model.id for model in page] == NAMES
    assert (page.has_more, page.first_id, page.last_id) == (False, NAMES[0], NAMES[-1])
    for name in NAMES:
        model = client.models.retrieve(name)
        assert model.id == model.display_name == name and model.type == "model"
        assert isinstance(model.created_at, datetime.datetime) and model.created_at.tzinfo is not None
        assert model.lifecycle == "active" and model.max_input_tokens == 1024
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.models.retrieve("nobody")
    assert missing.value.body["error"]["type"] == "not_found_error"
    stranger = anthropic.Anthropic(base_url=named.url, api_key="wrong", max_retries=0)
    for ask in (stranger.models.list, lambda: stranger.messages.create(model="plain", max_tokens=1, messages=[{"role": "user", "content": "a"}])):
        with pytest.raises(anthropic.AuthenticationError) as refused:
            ask()
        assert refused.value.body["error"]["type"] == "authentication_error"


def test_the_path_of_the_model_is_not_shown(named, folder):
    named.http.headers["x-api-key"] = "secret"
    listed = named.http.get("/v1/models")
    assert str(folder) not in listed.text and {card["root"] for card in listed.json()["data"]} == {"tiny"}
    one = named.http.get("/v1/models/org%2Fwith%20a%20slash")
    assert one.status_code == 200 and one.json() == named.http.get("/v1/models/org/with a slash").json()
    assert named.http.get("/v1/models/").status_code == 404
    assert named.http.get("/v1/models/tiny").json()["id"] == "plain"  # also accepted as `model`
