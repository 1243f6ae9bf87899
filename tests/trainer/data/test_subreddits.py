import pytest

from hypergrit_common.layouts import read_subreddit
from tests.patience import linear_time
from trainer.data.subreddits import Segmenter, redcaps_words
from trainer.text.tokenizer import Tokenizer, openai_tokenizer


@pytest.fixture(scope="module")
def segmenter() -> Segmenter:
    return Segmenter(openai_tokenizer())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("itookapicture", "i took a picture"),
        ("EarthPorn", "earth porn"),
        ("food_photography", "food photography"),
        ("food_pictures", "food pictures"),
        ("foodporn", "food porn"),
        ("natureisfuckinglit", "nature is fucking lit"),
        ("houseplants", "houseplants"),
        ("whatsthisbug", "whats this bug"),
        ("cats", "cats"),
    ],
)
def test_names_are_split_into_words(segmenter: Segmenter, name: str, words: str) -> None:
    assert segmenter.segment(name) == words


def test_name_stays_in_one_piece_if_the_vocabulary_has_no_words() -> None:
    assert Segmenter(Tokenizer([])).segment("mybirdfeeder") == "mybirdfeeder"


def test_table_holds_the_350_subreddits_of_redcaps() -> None:
    assert len(redcaps_words()) == 350
    assert all(name.islower() and " " not in name for name in redcaps_words())


def test_names_outside_the_table_are_split_by_the_vocabulary(segmenter: Segmenter) -> None:
    assert "mybirdfeeder" not in redcaps_words()
    assert segmenter.segment("mybirdfeeder") == "my bird feeder"


def test_a_long_name_takes_linear_time_and_is_no_subreddit(segmenter: Segmenter) -> None:
    with linear_time():
        assert segmenter.segment("mycat" * 8000) == " ".join(["my", "cat"] * 8000)
    assert [read_subreddit({"subreddit": "x" * n}) for n in (64, 65)] == ["x" * 64, None]
