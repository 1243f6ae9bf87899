import pytest
import torch

from trainer.encoders.config import TextConfig
from trainer.encoders.text import StateSource, TextEncoder


@pytest.fixture
def tower() -> TextEncoder:
    torch.manual_seed(0)
    return TextEncoder(TextConfig(vocab_size=50, context_length=10, width=16, layers=2, heads=2))


def hidden_states(tower: TextEncoder, token_ids: torch.Tensor) -> torch.Tensor:
    """[b l w] after the last norm."""
    return tower.walk(token_ids, StateSource())[2]


def test_padding_does_not_change_a_sentence(tower: TextEncoder) -> None:
    ids = torch.tensor([[48, 3, 7, 49]])
    torch.testing.assert_close(tower(ids), tower(torch.nn.functional.pad(ids, (0, 5))))


def test_no_token_sees_what_comes_after_it(tower: TextEncoder) -> None:
    first, second = torch.tensor([[48, 3, 7, 49]]), torch.tensor([[48, 3, 9, 49]])
    same = (hidden_states(tower, first) - hidden_states(tower, second)).abs().amax(-1)[0] < 1e-6
    assert same.tolist() == [True, True, False, False]


def test_sentence_is_the_state_at_the_first_end_of_text(tower: TextEncoder) -> None:
    ids = torch.tensor([[48, 3, 49, 5, 49]])
    torch.testing.assert_close(tower(ids)[0], hidden_states(tower, ids)[0, 2])


def test_attention_agrees_with_torchs_own_of_the_same_weights(tower: TextEncoder) -> None:
    ours = tower.resblocks[0].attn
    theirs = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    x, mask = torch.randn(3, 6, 16), torch.ones(6, 6, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours(x), theirs(x, x, x, attn_mask=mask)[0])


def test_a_text_longer_than_the_context_is_refused(tower: TextEncoder) -> None:
    with pytest.raises(ValueError, match="11 tokens"):
        tower(torch.ones(1, 11, dtype=torch.int64))


@pytest.mark.parametrize(
    ("places", "spots"),
    [
        (StateSource(), ("embedded", "hidden")),
        (StateSource(kind="block", block=1), ("after 0", "after 1")),
        (StateSource(kind="attention", block=0), ("normed 0", "mixed 0")),
    ],
)
def test_tokens_have_their_states_at_the_places_asked_for(
    tower: TextEncoder, places: StateSource, spots: tuple[str, str]
) -> None:
    ids = torch.tensor([[48, 3, 7, 49], [48, 9, 49, 0]])
    first, second = tower.resblocks
    state = {"embedded": tower.token_embed(ids) + tower.posit_embed[:4]}
    state["normed 0"] = first.ln_1(state["embedded"])
    state["mixed 0"] = first.attn(state["normed 0"])
    state["after 0"] = first(state["embedded"])
    state["after 1"] = second(state["after 0"])
    state["hidden"] = tower.ln_final(state["after 1"])
    asked = tower(ids, places)
    torch.testing.assert_close(asked.sentence, tower(ids))
    torch.testing.assert_close(asked.initial, state[spots[0]])
    torch.testing.assert_close(asked.contextual, state[spots[1]])
