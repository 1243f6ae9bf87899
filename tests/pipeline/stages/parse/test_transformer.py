"""Tests of a pipeline with a transformer: a BERT of two layers that learns the small model's parses of a few captions."""

import string

import pytest
import spacy
from spacy.language import Language
from spacy.training import Example

from pipeline.stages.parse import parser as spacy_model
from pipeline.stages.parse.config import ParseConfig, spacy_package
from pipeline.stages.parse.parser import CaptionParser
from tests.pipeline.settings import with_constants

pytest.importorskip("spacy_curated_transformers", reason="pip install 'spacy-curated-transformers<1'")

LEARNED = ["a dog with a ball and a cat", "a group of people on a beach", "two red cars near a house"]
TEXTS = [
    *LEARNED,
    "a group of people - two red cars",
    "A dog | a ball",
    "a dog 👩\u200d🚀 | ½",
    "Men's shoes can't be here",
]
WIDTH = 32
TRANSFORMER = {
    "@architectures": "spacy-curated-transformers.BertTransformer.v1", "vocab_size": 300, "hidden_width": WIDTH,
    "intermediate_width": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "piece_encoder": {"@architectures": "spacy-curated-transformers.BertWordpieceEncoder.v1"},
    "with_spans": {"@architectures": "spacy-curated-transformers.WithStridedSpans.v1"},
}  # fmt: skip
LISTENER = {
    "@architectures": "spacy-curated-transformers.LastTransformerLayerListener.v1", "width": WIDTH,
    "pooling": {"@layers": "reduce_mean.v1"}, "upstream": "transformer",
}  # fmt: skip
PARSER = {
    "@architectures": "spacy.TransitionBasedParser.v2", "state_type": "parser", "extra_state_tokens": False,
    "hidden_width": 32, "maxout_pieces": 2, "use_upper": False, "tok2vec": LISTENER,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a pipeline with the components of en_core_web_trf: transformer, tagger, parser, ruler, lemmatizer."""
    folder = tmp_path_factory.mktemp("model")
    letters = string.ascii_lowercase
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "pieces.txt").write_text("\n".join(pieces))
    small = spacy.load(spacy_package("en_core_web_sm"), exclude=["ner", "senter"])
    nlp = spacy.blank("en")
    nlp.add_pipe("curated_transformer", name="transformer", config={"model": TRANSFORMER})
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": LISTENER}})
    nlp.add_pipe("parser", config={"min_action_freq": 1, "model": PARSER})
    loader = {"@model_loaders": "spacy-curated-transformers.WordpieceLoader.v1", "path": str(folder / "pieces.txt")}
    nlp.config["initialize"]["components"]["transformer"] = {"piecer_loader": loader}
    learn(nlp, [Example(nlp.make_doc(text), small(text)) for text in LEARNED])
    for name in ("attribute_ruler", "lemmatizer"):
        nlp.add_pipe(name, source=small)
    nlp.to_disk(folder / "trf")
    return str(folder / "trf")


def learn(nlp: Language, examples: list[Example]) -> None:
    from spacy_curated_transformers.pipeline import transformer

    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(lambda: examples)
    optimizer.learn_rate = 3e-3
    with pytest.MonkeyPatch.context() as patch:
        # It converts its loss, an array of one number, by float(), which numpy refuses since 2.4. Only training does so.
        patch.setattr(transformer, "float", lambda array: array.item(), raising=False)
        for _ in range(150):
            nlp.update(examples, sgd=optimizer)


def test_transformer_gives_the_parses_that_it_learned(model: str) -> None:
    parser = CaptionParser(ParseConfig(model=model))
    assert parser.nlp.component_names[0] == "transformer"
    assert parser.token_table is not None
    assert list(parser.parse(LEARNED)) == list(CaptionParser(ParseConfig(model="en_core_web_sm")).parse(LEARNED))


def test_grits_form_equals_the_parse_of_the_transformer_pipeline(model: str) -> None:
    form = ParseConfig(model=model, style="grit")
    for doc, parse in zip(spacy.load(model).pipe(TEXTS), CaptionParser(form).parse(TEXTS), strict=True):
        assert parse.tokens == [(t.idx, t.idx + len(t), t.head.i, t.dep_, t.pos_, t.tag_, t.lemma_) for t in doc]
        assert [c[:3] for c in parse.chunks] == [(c.start_char, c.end_char, c.root.i) for c in doc.noun_chunks]


def test_parse_does_not_depend_on_the_batch_or_on_a_long_caption_in_it(model: str) -> None:
    texts = [*TEXTS, "dog " * 400]
    alone, together = (
        list(CaptionParser(with_constants(ParseConfig, model=model, batch_size=size)).parse(texts))
        for size in (1, len(texts))
    )
    assert alone == together


def test_transformer_alone_asks_for_the_gpu(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in ("en_core_web_sm", model):
        monkeypatch.setattr(spacy, "prefer_gpu", lambda name=name: asked.append(name))
        spacy_model.load_spacy(name)
    assert asked == [model]
