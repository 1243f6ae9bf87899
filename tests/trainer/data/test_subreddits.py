import pytest

from trainer.data.subreddits import Segmenter
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
        ("houseplants", "house plants"),
        ("whatsthisbug", "whats this bug"),
        ("cats", "cats"),
    ],
)
def test_names_are_split_into_words(segmenter: Segmenter, name: str, words: str) -> None:
    assert segmenter.segment(name) == words


def test_name_stays_in_one_piece_if_the_vocabulary_has_no_words() -> None:
    assert Segmenter(Tokenizer([])).segment("itookapicture") == "itookapicture"
