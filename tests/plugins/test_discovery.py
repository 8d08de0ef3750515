"""Discovery: one scan, and nobody else's broken file ends it."""

import pytest

from petra_graph.plugins.entry_points import Entry, scan

BLOCKS = "[petra_graph.blocks]\nmine = my_blocks:MINE\n"


def entry(name, distribution, target="my_blocks:MINE"):
    return Entry(group="petra_graph.blocks", name=name, distribution=distribution, target=target)


def test_collects_our_groups_and_no_others(install, site):
    install("my-blocks", BLOCKS + "[console_scripts]\nx = y:z\n[petra_graph.losses]\nl = m:L\n")
    found, unreadable = scan([str(site)])
    assert found == (
        entry("mine", "my-blocks"),
        Entry(group="petra_graph.losses", name="l", distribution="my-blocks", target="m:L"),
    )
    assert unreadable == ()


@pytest.mark.parametrize(
    "malformed",
    ["no section\n", "[a]\nno equals sign\n", "[a\n", "[a]\nx = y\nx = z\n", "\xff\xfe"],
)
def test_a_malformed_file_of_an_unrelated_distribution_hides_nothing(install, site, malformed):
    install("aaa-unrelated", malformed)
    install("my-blocks", BLOCKS)
    install("zzz-unrelated", malformed)
    found, unreadable = scan([str(site)])
    assert found == (entry("mine", "my-blocks"),)
    assert unreadable == ()


def test_a_file_that_is_not_text_is_named(install, site):
    (install("broken", "") / "entry_points.txt").write_bytes(b"[petra_graph.blocks]\nx = \xff\xfe\n")
    (install("twice", "") / "entry_points.txt").write_bytes(b"[petra_graph.blocks]\nx = a:B\nx = a:C\n")
    install("my-blocks", BLOCKS)
    found, unreadable = scan([str(site)])
    assert found == (entry("mine", "my-blocks"),)
    assert unreadable == ("broken", "twice")


def test_the_same_distribution_seen_twice_is_one(install, site, tmp_path):
    # An editable install is found by its metadata, and again by the egg-info in its own folder.
    install("my-blocks", BLOCKS)
    info = tmp_path / "source" / "my_blocks.egg-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(BLOCKS)
    assert scan([str(site), str(tmp_path / "source")])[0] == (entry("mine", "my-blocks"),)


def test_a_distribution_that_comes_between_two_scans_is_found(install, site):
    """What a scan found in a folder is kept while that folder does not change."""
    install("my-blocks", BLOCKS)
    assert scan([str(site)])[0][0] is scan([str(site)])[0][0]
    install("others", BLOCKS.replace("mine =", "others ="))
    assert {one.distribution for one in scan([str(site)])[0]} == {"my-blocks", "others"}


def test_percent_signs_capitals_and_letters_of_any_language_are_kept(install, site):
    install("my-blocks", "[petra_graph.blocks]\nGröße = %(x)s:MINE\n")
    assert scan([str(site)])[0] == (entry("Größe", "my-blocks", "%(x)s:MINE"),)


def test_an_entry_that_is_no_reference_raises_only_when_it_is_loaded(install, site):
    install("my-blocks", "[petra_graph.blocks]\nmine = not a reference!\n")
    [found] = scan([str(site)])[0]
    with pytest.raises(Exception, match="Couldn't parse entry point"):
        found.load()
