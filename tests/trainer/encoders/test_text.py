import pytest
import torch

from hypergrit_common.errors import UserError
from trainer.encoders.config import TextConfig
from trainer.encoders.open_clip_towers import OpenClipText
from trainer.encoders.text import StateSource, TextEncoder, stretch_positions


@pytest.fixture
def tower() -> TextEncoder:
    torch.manual_seed(0)
    return TextEncoder(TextConfig(vocab_size=50, context_length=10, width=16, layers=2, heads=2))


def final_states(tower: TextEncoder, token_ids: torch.Tensor) -> torch.Tensor:
    """States [b l w] after the last norm."""
    return tower.hidden_states(token_ids, StateSource()).contextual


def test_padding_does_not_change_the_feature(tower: TextEncoder) -> None:
    ids = torch.tensor([[48, 3, 7, 49]])
    torch.testing.assert_close(tower(ids), tower(torch.nn.functional.pad(ids, (0, 5))))


def test_states_do_not_depend_on_later_tokens(tower: TextEncoder) -> None:
    first, second = torch.tensor([[48, 3, 7, 49]]), torch.tensor([[48, 3, 9, 49]])
    unchanged = (final_states(tower, first) - final_states(tower, second)).abs().amax(-1)[0] < 1e-6
    assert unchanged.tolist() == [True, True, False, False]


def test_feature_is_the_state_of_the_first_end_of_text(tower: TextEncoder) -> None:
    ids = torch.tensor([[48, 3, 49, 5, 49]])
    torch.testing.assert_close(tower(ids)[0], final_states(tower, ids)[0, 2])


def test_attention_equals_torchs_with_the_same_weights(tower: TextEncoder) -> None:
    ours = tower.resblocks[0].attn
    theirs = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    x, mask = torch.randn(3, 6, 16), torch.ones(6, 6, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours(x), theirs(x, x, x, attn_mask=mask)[0])


def test_text_longer_than_the_context_raises_an_error(tower: TextEncoder) -> None:
    with pytest.raises(ValueError, match="11 tokens"):
        tower(torch.ones(1, 11, dtype=torch.int64))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (StateSource(), ("embedded", "hidden")),
        (StateSource(kind="block", block=1), ("after 0", "after 1")),
        (StateSource(kind="attention", block=0), ("normed 0", "mixed 0")),
    ],
)
def test_token_states_are_those_of_the_selected_source(
    tower: TextEncoder, source: StateSource, expected: tuple[str, str]
) -> None:
    ids = torch.tensor([[48, 3, 7, 49], [48, 9, 49, 0]])
    first, second = tower.resblocks
    state = {"embedded": tower.token_embed(ids) + tower.posit_embed[:4]}
    state["normed 0"] = first.ln_1(state["embedded"])
    state["mixed 0"] = first.attn(state["normed 0"])
    state["after 0"] = first(state["embedded"])
    state["after 1"] = second(state["after 0"])
    state["hidden"] = tower.ln_final(state["after 1"])
    states = tower(ids, source)
    torch.testing.assert_close(states.pooled, tower(ids))
    torch.testing.assert_close(states.initial, state[expected[0]])
    torch.testing.assert_close(states.contextual, state[expected[1]])


def test_stretched_positions_keep_the_first_and_interpolate_the_others() -> None:
    table = torch.arange(6.0)[:, None] * torch.tensor([1.0, 10.0])
    found = stretch_positions(table, 9, 2)
    assert torch.equal(found[:3], table[:3])
    torch.testing.assert_close(found[2:, 0], torch.tensor([2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]))
    torch.testing.assert_close(found[:, 1], 10 * found[:, 0])


@pytest.mark.parametrize(
    "config",
    [TextConfig(vocab_size=50, context_length=10, width=16, layers=1, heads=2, embedding_noise=0.5),
     TextConfig(name="open_clip/ViT-B-32", embedding_noise=0.5)],
    ids=["papers", "open_clip"],
)  # fmt: skip
def test_noise_of_token_embeddings_is_uniform_has_the_norm_of_neftune_and_is_off_in_evaluation(
    config: TextConfig,
) -> None:
    torch.manual_seed(0)
    noisy = OpenClipText(config) if config.name else TextEncoder(config)
    ids = torch.randint(1, 49, (64, 9))
    plain = noisy.eval().hidden_states(ids, StateSource()).initial
    noise = noisy.train().hidden_states(ids, StateSource()).initial - plain
    largest = 0.5 / (9 * noisy.num_features) ** 0.5
    assert noise.abs().max() <= largest * (1 + 1e-5)
    torch.testing.assert_close(noise.std(), torch.tensor(largest / 3**0.5), rtol=0.02, atol=0)
    assert abs(noise.mean()) < 0.02 * largest
    with pytest.raises(UserError, match=r"embedding_noise is 0\.5, but transformers has none"):
        TextConfig(name="transformers", embedding_noise=0.5)
