"""Pages against plain dicts: the same names, the same bytes whatever the way there, and differences that are right."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.errors import FormatError
from store.format import (
    SLOTS,
    Absent,
    Attributes,
    ChunkList,
    Directory,
    HolePiece,
    Inline,
    Linked,
    LinkTarget,
    Regular,
    Symlink,
    encode,
)
from store.nodes import (
    LEAF_MAX,
    NO_CONTENT,
    Branch,
    Fresh,
    FreshDirectory,
    FreshRegular,
    Leaf,
    Pages,
    Stored,
    attributes_entry,
    is_fresh,
    name_hash,
    same_entry,
    settled,
)
from tests.fakes.objects import MemoryObjects

PLAIN = Attributes(5, 0o644, 0, 0, 1, 2)


def name(number):
    return b"name-%d" % number


def file(number):
    return Regular(PLAIN, Inline(b"%d" % number))


# Steps over few names, so that they meet, and ranges, so that pages split and join again.
STEPS = st.lists(
    st.one_of(
        st.dictionaries(st.integers(0, 300), st.none() | st.integers(0, 3), max_size=8),
        st.tuples(st.integers(0, 300), st.integers(0, 200), st.none() | st.integers(0, 3)).map(
            lambda t: dict.fromkeys(range(t[0], t[0] + t[1]), t[2])
        ),
    ),
    max_size=6,
)


def changes_of(step):
    return {name(number): None if value is None else file(value) for number, value in step.items()}


def run(pages, step_list, save_after=()):
    page, model = None, {}
    states = []
    for number, step in enumerate(step_list):
        page = pages.update(page, changes_of(step))
        for key, entry in changes_of(step).items():
            if entry is None:
                model.pop(key, None)
            else:
                model[key] = entry
        if number in save_after and page is not None:
            page = pages.load(pages.save(page))
        states.append((page, dict(model)))
    return states


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sets(st.integers(0, 5)))
def test_pages_behave_as_a_dict(steps, save_after):
    objects = MemoryObjects()
    states = run(Pages(objects), steps, save_after)
    for pages in (Pages(objects), Pages(objects, cached=2)):
        for page, model in states:
            assert dict(pages.items(page)) == model
            assert pages.count(page) == len(model)
            assert (page is None) == (not model)
            for number in range(0, 320, 7):
                assert pages.get(page, name(number)) == model.get(name(number))


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_the_way_to_a_directory_does_not_show_in_its_bytes(steps):
    pages = Pages(MemoryObjects())
    for page, model in run(pages, steps):
        at_once = pages.update(None, model)
        if page is not None:
            assert pages.save(page) == pages.save(at_once)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.data())
def test_differences_are_those_of_the_dicts(steps, data):
    objects = MemoryObjects()
    pages = Pages(objects)
    states = [(None, {}), *run(pages, steps, save_after={0, 2})]
    (a, before), (b, after) = data.draw(st.sampled_from(states)), data.draw(st.sampled_from(states))
    found = {key: (old, new) for key, old, new in pages.differences(a, b)}
    assert found == {
        key: (before.get(key), after.get(key))
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key)
    }


def test_a_change_in_a_big_directory_writes_one_leaf_and_the_branches_above_it():
    objects = MemoryObjects()
    pages = Pages(objects)
    big = pages.update(None, {name(number): file(0) for number in range(20_000)})
    pages.save(big)
    before = set(objects.data)
    changed = pages.update(big, {name(77): file(1)})
    pages.save(changed)
    assert len(set(objects.data) - before) <= 4
    seen = []
    original = objects.get_node
    objects.get_node = lambda ref: seen.append(ref) or original(ref)
    fresh = Pages(objects)
    found = list(fresh.differences(fresh.load(big.ref), fresh.load(changed.ref)))
    assert found == [(name(77), file(0), file(1))]
    assert len(seen) <= 8


def test_names_whose_hashes_agree_share_a_leaf(monkeypatch):
    monkeypatch.setattr("store.nodes.name_hash", lambda name: 0)
    pages = Pages(MemoryObjects())
    model = {name(number): file(0) for number in range(LEAF_MAX + 10)}
    page = pages.update(None, model)
    assert dict(pages.items(page)) == model
    assert pages.get(page, name(3)) == file(0)
    again = pages.load(pages.save(page))
    assert dict(Pages(pages._objects).items(again)) == model
    assert pages.update(page, dict.fromkeys(list(model)[:20])) is not None
    assert isinstance(pages.update(page, dict.fromkeys(list(model)[:20])), Leaf)


def test_name_hash_is_what_the_format_says():
    assert name_hash(b"README.md") == 0x9DB79770A46B090A
    assert SLOTS == 32


def test_fresh_entries_are_found_sealed_and_settled():
    objects = MemoryObjects()
    pages = Pages(objects)
    below = pages.update(None, {b"inner": file(1)})
    fresh_file = FreshRegular(PLAIN, NO_CONTENT, Fresh("bytes"))
    fresh_directory = FreshDirectory(PLAIN, None, 0, None, Fresh(below))
    page = pages.update(None, {b"f": fresh_file, b"d": fresh_directory, b"old": file(2), b"gone": Absent()})
    assert set(map(id, pages.fresh_entries(page))) == {id(fresh_file), id(fresh_directory)}
    assert is_fresh(fresh_file)
    assert pages.page_of(fresh_directory) is below
    with pytest.raises(AssertionError):
        pages.save(page)
    sealed_file = file(9)
    fresh_file.fresh.sealed = sealed_file
    fresh_directory.fresh.sealed = Directory(PLAIN, None, 0, pages.save(below))
    assert settled(fresh_file) is sealed_file
    assert not list(pages.fresh_entries(page))
    ref = pages.save(page)
    assert pages.save(page) == ref
    again = Pages(objects)
    assert again.get(again.load(ref), b"f") == sealed_file
    assert dict(again.items(again.page_of(again.get(again.load(ref), b"d")))) == {b"inner": file(1)}
    assert pages.page_of(fresh_directory) is below
    assert list(pages.fresh_entries(page)) == []
    assert list(pages.fresh_entries(None)) == []


def test_rows_of_the_link_table_are_sealed_with_their_file():
    objects = MemoryObjects()
    pages = Pages(objects)
    fresh_file = FreshRegular(PLAIN, NO_CONTENT, Fresh("bytes"))
    key = (5).to_bytes(8, "big")
    links = pages.update(None, {key: LinkTarget(fresh_file, 2)})
    assert list(pages.fresh_entries(links)) == [LinkTarget(fresh_file, 2)]
    fresh_file.fresh.sealed = file(3)
    assert settled(LinkTarget(fresh_file, 2)) == LinkTarget(file(3), 2)
    again = Pages(objects)
    assert again.get(again.load(pages.save(links)), key) == LinkTarget(file(3), 2)


def test_entries_are_compared_without_looking_below():
    one = FreshRegular(PLAIN, NO_CONTENT, Fresh("bytes"))
    other = FreshRegular(PLAIN, NO_CONTENT, Fresh("bytes"))
    assert same_entry(one, one)
    assert not same_entry(one, other)
    assert same_entry(one, FreshRegular(PLAIN, NO_CONTENT, one.fresh))
    assert not same_entry(one, FreshRegular(Attributes(5, 0o600, 0, 0, 1, 2), NO_CONTENT, one.fresh))
    assert not same_entry(one, file(1))
    one.fresh.sealed = file(1)
    assert same_entry(one, file(1))
    assert same_entry(None, None)
    assert not same_entry(None, file(1))
    assert same_entry(LinkTarget(one, 2), LinkTarget(file(1), 2))
    assert not same_entry(LinkTarget(one, 2), LinkTarget(file(1), 3))


def test_entries_with_attributes():
    assert attributes_entry(Absent()) is None
    assert attributes_entry(Linked(5)) is None
    assert attributes_entry(LinkTarget(file(1), 2)) == file(1)
    link = Symlink(PLAIN, b"x")
    assert attributes_entry(link) is link


def test_what_is_no_page_is_refused():
    objects = MemoryObjects()
    with pytest.raises(FormatError):
        Pages(objects).load(objects.put_node(encode(ChunkList((HolePiece(1),)))))


def test_loaded_branches_know_their_children_by_name_only():
    objects = MemoryObjects()
    pages = Pages(objects)
    ref = pages.save(pages.update(None, {name(number): file(0) for number in range(LEAF_MAX + 1)}))
    branch = Pages(objects).load(ref)
    assert isinstance(branch, Branch)
    assert branch.count == LEAF_MAX + 1
    assert all(child is None or isinstance(child, Stored) for child in branch.children)
