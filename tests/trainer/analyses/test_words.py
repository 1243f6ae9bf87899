"""Groups and families of words by factor, on invented norms."""

import pytest
import torch

from trainer.analyses.words import edge_order, factor_of, held_out_auc, read_words, separation, strongest


def test_the_factor_of_a_family_is_the_one_where_its_norms_stand_out() -> None:
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.rand(20, 8, generator=generator), torch.rand(200, 8, generator=generator)
    outside[:, 5] += 9  # large for the others
    inside[:, 5] += 9
    inside[:, 2] += 2
    assert factor_of(inside, outside) == 2
    assert held_out_auc(inside, outside) == 1.0


def test_shift_is_in_standard_deviations() -> None:
    inside, outside = torch.tensor([[4.0], [6.0]]), torch.tensor([[-1.0], [1.0]])
    assert separation(inside, outside).item() == pytest.approx(5.0)


def test_constant_and_random_norms_have_the_chance_level() -> None:
    assert held_out_auc(torch.ones(20, 8), torch.ones(50, 8)) == 0.5
    generator = torch.Generator().manual_seed(0)
    found = [
        held_out_auc(torch.rand(20, 64, generator=generator), torch.rand(300, 64, generator=generator))
        for _ in range(40)
    ]
    assert sum(found) / len(found) == pytest.approx(0.5, abs=0.03)  # the choice among 64 factors does not help


def test_edges_with_equal_norms_are_no_order() -> None:
    norms = {"animal": 1.0, "dog": 2.0, "puppy": 2.0}
    assert edge_order(norms, [("dog", "animal"), ("puppy", "dog")]) == 0.5


def test_strongest_words_of_each_factor() -> None:
    norms = torch.tensor([[0.0, 1.0], [5.0, 2.0], [1.0, 3.0]])
    assert strongest(norms, ["a", "b", "c"], 2) == {0: ["b", "c"], 1: ["c", "b"]}


def test_words_are_from_several_groups_and_families() -> None:
    groups, families = read_words()
    assert len(groups) == 7
    assert all(60 <= len(set(words)) == len(words) <= 100 for words in groups.values())
    for family in families.values():
        assert {word for edge in family.edges for word in edge} <= set(family.words)
        assert all(word != parent for word, parent in family.edges)
    assert ("puppy", "dog") in families["mammals"].edges
