"""Every check of a digest, chain hash or manifest, and the test that notices when it is left out.

`left_out.sites` finds the conditions; each stands in `CHECKS`, with a test of the damage suites as
its catcher, or in `NO_CHECKS`, with what it is instead. `catching` runs each catcher with its check
left out, in a process of its own, since a damaged index kills whoever maps it.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.crash.left_out import Site

ROOT = Path(__file__).parents[2]
UNIT, FORMAT = "tests/unit", "tests/format"


@dataclass(frozen=True, slots=True)
class Check:
    """One check; `catcher` passes with it and fails without."""

    name: str
    site: Site
    catcher: str


def _of(name: str, module: str, function: str, condition: str, catcher: str, *,
        instead: bool = False) -> Check:  # fmt: skip
    return Check(name, Site(module, function, condition, instead), catcher)


_DAMAGE = f"{UNIT}/test_damage.py::test_"
_FORGED = f"{UNIT}/test_forged.py::test_"
_CATALOG = f"{UNIT}/test_catalog.py::test_"
_SALVAGE = f"{UNIT}/test_salvage.py::test_"

CHECKS = (
    _of("STORE: its digest", "store_file.py", "read_store_file",
        "not uuid.isascii() or text != store_text(uuid.decode('ascii'))",
        f"{_DAMAGE}every_flipped_byte_of_the_store_file_is_refused[one bit]"),
    _of("log: of this store", "wal/reader.py", "read_log",
        "uuid is not None and segment.header['uuid'] != uuid",
        f"{_DAMAGE}segments_of_another_place_or_store_are_refused"),
    _of("log: the frame's length", "format/frames.py", "parse_frame", "check != expected_check",
        f"{_FORGED}a_length_whose_check_is_wrong_is_refused"),
    _of("log: the frame's digest", "format/frames.py", "parse_frame", "found != expected",
        f"{_DAMAGE}flipped_bytes_of_the_log_are_refused[one bit]"),
    _of("log: a frame of this segment", "wal/reader.py", "_expected", "frame.salt != salt",
        f"{_FORGED}a_whole_frame_that_does_not_follow_is_refused[salt]"),
    _of("log: a frame that follows its predecessor", "wal/reader.py", "_expected",
        "frame.predecessor != chain",
        f"{_FORGED}a_whole_frame_that_does_not_follow_is_refused[predecessor]"),
    _of("log: no record is left out", "wal/reader.py", "_scan", "body.get('seq') != seq",
        f"{_FORGED}a_whole_frame_that_does_not_follow_is_refused[seq]"),
    _of("log: the segment is the one of its name", "wal/reader.py", "_scan",
        "frame.magic != HEADER_MAGIC or header.get('index') != index",
        f"{_DAMAGE}segments_of_another_place_or_store_are_refused"),
    _of("log: a lost frame that was synced is no torn tail", "format/frames.py", "judge_tail",
        "later.salt == salt and later.log_synced >= seq",
        f"{UNIT}/test_frames.py::test_a_synced_record_that_is_lost_is_never_a_tail"),
    _of("log: a reader that follows, chain hash", "wal/follower.py", "LogFollower._continues",
        "(frame.magic, frame.salt, frame.predecessor) == expected",
        f"{_FORGED}a_follower_takes_over_only_what_follows[predecessor]", instead=True),
    _of("log: a reader that follows, sequence", "wal/follower.py", "LogFollower._news",
        "body['seq'] != seq or body['type'] == 'open'",
        f"{_FORGED}a_follower_takes_over_only_what_follows[seq]"),
    _of("log: a compressed segment is whole", "format/packed.py", "unpack_segment",
        "not reader.eof or reader.unused_data or len(content) != size",
        f"{UNIT}/test_compress.py::test_every_flipped_byte_and_every_cut_is_found"),
    _of("fold: a commit's parent and its chain hash", "wal/state.py", "State._commit",
        "record['parent'] != head or (parent and record['parent_chain'] != parent.chain)",
        f"{UNIT}/test_state.py::test_a_record_that_does_not_fit_is_damage_with_its_place"
        "[commit-change1]"),
    _of("fold: a commit's manifest", "wal/reader.py", "check_manifest", "found != expected",
        f"{UNIT}/test_state.py::test_a_record_that_does_not_fit_is_damage_with_its_place"
        "[commit-change2]"),
    _of("object: the file's length", "objects.py", "ObjectReader.open",
        "found != reference.size",
        f"{_DAMAGE}objects_cut_lengthened_removed_or_swapped_are_refused"),
    _of("object: the header's digest, from the manifest", "objects.py", "check_header",
        "found != reference.digest", f"{_DAMAGE}an_older_version_of_an_object_is_refused"),
    _of("object: whose it is", "objects.py", "check_header", "names != part",
        f"{_FORGED}an_object_of_another_part_is_refused"),
    _of("object: the header's own digest", "format/fields.py", "check_own_digest",
        "expected.encode() != found", f"{FORMAT}/test_layout.py::"
        "test_every_flipped_byte_is_found_in_its_place"),
    _of("object: a digest for each tensor", "format/headers.py", "parse_header",
        "len(digests) != len(layout.tensors)",
        f"{FORMAT}/test_headers.py::test_a_forged_header_is_named[a digest too few]"),
    _of("object: each tensor's digest", "format/layout.py", "DataCheck._verdict",
        "name and (found := self._state.hexdigest()) != expected",
        f"{_DAMAGE}a_flipped_byte_in_each_region_of_an_object_is_refused[one bit]"),
    _of("object: padding is zero", "format/layout.py", "DataCheck._verdict",
        "self._spoilt is not None",
        f"{_DAMAGE}a_flipped_byte_in_each_region_of_an_object_is_refused[one bit]"),
    _of("safetensors and pt: the file's digest", "foreign.py", "_check_file",
        "found == reference.digest",
        f"{UNIT}/test_store_formats.py::test_wrong_bytes_are_never_returned[pt]", instead=True),
    _of("safetensors and pt: the beginning's digest", "foreign.py", "_header_in_beginning",
        "found != reference.head",
        f"{_FORGED}an_older_header_of_the_same_part_is_refused"),
    _of("safetensors: a digest for each tensor", "format/safetensors_file.py", "parse_header",
        "len(digests) != len(specs)", f"{_FORGED}a_digest_too_few_is_refused[safetensors]"),
    _of("pt: a digest for each tensor", "codecs/foreign.py", "decode",
        "len(digests) != len(specs)", f"{_FORGED}a_digest_too_few_is_refused[pt]"),
    _of("safetensors and pt: each tensor's digest", "codecs/foreign.py", "_check_digests",
        "digits != expected", f"{UNIT}/test_foreign_codec.py::"
        "test_a_changed_safetensors_file_is_refused_and_the_tensor_named"),
    _of("archive: the base is the one that was used", "foreign.py", "_unpack",
        "header.base != named",
        f"{UNIT}/test_archive.py::test_a_reference_with_another_base_is_refused"),
    _of("archive: each tensor's digest", "codecs/archive.py", "decode",
        "(found := digest(view[entry.begin:entry.end])) != expected",
        f"{UNIT}/test_archive.py::test_what_reads_back_otherwise_is_not_archived"),
    _of("archive: a digest for each tensor", "format/archive_file.py", "parse_header",
        "len(digests) != len(specs)", f"{UNIT}/test_archive_codec.py::"
        "test_headers_that_no_store_wrote_are_refused[<lambda>24]"),
    _of("archive: each piece's digest", "codecs/archive.py", "ArchiveContents.damage",
        "(found := short_digest(data[at:at + piece.bytes])) != piece.check",
        f"{UNIT}/test_archive.py::test_damage_is_named_and_nothing_wrong_is_returned"),
    _of("convert: the state is the same", "conversion.py", "convert", "found != digest",
        f"{_FORGED}a_conversion_that_changes_the_state_is_told"),
    _of("catalog: the mark's digest", "catalog/mark.py", "_read",
        "text != body + digest(body).encode('ascii') + b'\\n'",
        f"{_CATALOG}no_flipped_byte_changes_what_history_says"),
    _of("catalog: the log reaches the mark", "catalog/mark.py", "check_not_ahead",
        "mark is None or view.copied or mark.seq <= view.last.seq",
        f"{_CATALOG}a_log_that_was_cut_off_is_refused", instead=True),
    _of("catalog: the index's digest, before it is mapped", "catalog/index.py", "open_index",
        "_digest(fs, path) != file.digest", f"{_CATALOG}no_flipped_byte_changes_what_history_says"),
    _of("catalog: the index's digest, before it is built upon", "catalog/index.py", "_start",
        "state.hexdigest() != base.digest",
        f"{_CATALOG}a_damaged_index_is_not_built_upon"),
    _of("catalog: a row's digest and chain hash", "catalog/index.py", "_verified",
        "not whole or (chain is not None and chain != found)",
        f"{_CATALOG}a_row_that_is_wrong_is_read_from_the_log"),
    _of("fsck: a segment's header", "fsck/scan.py", "_Scanner.read_header", "expected != found",
        f"{_FORGED}fsck_finds_a_header_that_does_not_follow"),
    _of("fsck: a record follows its predecessor", "fsck/scan.py", "_Scanner._record",
        "expected is not None and found is not None and (expected != found)",
        f"{_FORGED}fsck_finds_a_frame_that_does_not_follow_in_an_old_segment[salt]"),
    _of("fsck: a segment of this store", "fsck/log_check.py", "_check_header",
        "expected != found", f"{UNIT}/test_fsck.py::test_segments_of_another_store_do_not_fit"),
    _of("fsck: what a segment says of its predecessor", "fsck/log_check.py", "_link_findings",
        "link[key] != found[key]",
        f"{UNIT}/test_fsck.py::test_segments_of_another_store_do_not_fit"),
    _of("fsck: an object's label", "fsck/identity.py", "identity", "expected != found",
        f"{UNIT}/test_fsck_objects.py::test_swapped_objects_are_told_apart"),
    _of("fsck: an object's length", "fsck/object_base.py", "ObjectCheck.begin",
        "size != expected and (not self.rules.against_itself)",
        f"{UNIT}/test_fsck_objects.py::test_files_of_another_length_are_found[False-truncated]"),
    _of("fsck: the header's digest, from the manifest", "fsck/object_check.py",
        "RawCheck._judge_identity", "not wrong and found != expected",
        f"{UNIT}/test_fsck_objects.py::"
        "test_an_object_that_is_whole_and_was_never_committed_is_found"),
    _of("fsck: the digest of a file of another format", "fsck/foreign_check.py",
        "ForeignCheck._of_data", "found != expected",
        f"{UNIT}/test_store_formats.py::test_wrong_bytes_are_never_returned[pt]"),
    _of("fsck: each tensor of such a file", "codecs/contents.py", "Contents.damage",
        "(found := digest(data[begin:end])) != expected",
        f"{UNIT}/test_store_formats.py::test_fsck_names_tensor_and_owner[safetensors]"),
    _of("fsck: a snapshot's manifest is of its commit", "fsck/wanted.py", "wanted_objects",
        "(held.seq, held.chain, held.step) != (info.seq, info.chain, info.step)",
        f"{_FORGED}fsck_finds_a_manifest_of_another_commit"),
    _of("fsck: the catalog is of this history", "fsck/catalog_check.py", "check_catalog",
        "at.get(mark.seq, mark.chain) != mark.chain",
        f"{_FORGED}fsck_notes_a_catalog_of_another_history"),
    _of("salvage: a commit behind a gap adds up", "salvage/evidence.py", "_check",
        "manifest_digest(commit.manifest) != body['manifest_digest']",
        f"{_SALVAGE}a_step_that_kept_what_a_lost_record_put_is_no_mixture"),
    _of("salvage: a set has exactly the parts that it expected", "salvage/objects_alone.py",
        "_whole_sets",
        "{one.label.expect for one in members.values()} == {expect_digest(members)}",
        f"{_SALVAGE}a_set_that_kept_parts_is_not_called_whole", instead=True),
    _of("salvage: a manifest is that of its commit", "salvage/verify.py", "verify",
        "(commit.seq, commit.chain) != (info.seq, info.chain)",
        f"{_FORGED}a_salvage_does_not_take_a_manifest_of_another_commit"),
    _of("salvage: a new manifest is of the snapshot's commit", "salvage/verify.py", "_inline",
        "commit.chain != info.chain",
        f"{UNIT}/test_salvage_snapshots.py::test_another_commit_of_the_same_number_is_not_taken"),
)  # fmt: skip

NO_CHECKS = {
    ("catalog/index.py", "_seq_before"): "where the rows have to end",
    ("compare.py", "_add"): "tells what changed between two commits",
    ("format/archive_file.py", "_base"): "the spelling of a field",
    ("format/frames.py", "_claimed_bytes"): "how far a bad frame reaches",
    ("format/frames.py", "_was_appended_later"): "part of the verdict on a torn tail",
    ("fsck/__init__.py", "_that_still_count"): "whether a writer went on meanwhile",
    ("fsck/scan.py", "_Scanner._report_loss"): "the words of a note",
    ("importing/flat_file.py", "read_header"): "the size of a foreign file",
    ("lineage.py", "choose"): "which of two stores goes on",
    ("pinned_view.py", "_is_kept"): "whether a commit is still kept: `turns` breaks it",
    ("refs.py", "resolve"): "what a ref means",
    ("retention.py", "held_of"): "which commits stay",
    ("salvage/choice.py", "_Chooser._choose_branches"): "which commit a branch goes back to",
    ("salvage/evidence.py", "_fold"): "where records are missing",
    ("staging.py", "Staging._finish"): "whether a part is unchanged",
    ("upkeep.py", "Upkeep._renew_index"): "whether the index can be added to; else it is made anew",
    ("wal/deferred.py", "DeferredManifest.resolve"): "when nothing older has to be parsed",
    ("wal/state.py", "State._push"): "which entries undo forgets",
    ("wal/state.py", "State._undo"): "which entry is undone",
}
"""Conditions that compare such things and check nothing."""


@functools.cache
def caught() -> dict[str, bool]:
    """By name of the check, whether its catcher passes with it and fails without."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        catchers = sorted({check.catcher for check in CHECKS})
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.crash.catching",
                   "--checks-report", str(report), *catchers]  # fmt: skip
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert report.exists(), done.stdout + done.stderr
        found: dict[str, bool] = json.loads(report.read_text())
        return found


def render_checks() -> list[str]:
    """The part of the document that is about checks."""
    lines = [
        "Digests, chain hashes and manifests: each condition that checks one is left out of the",
        "real code (`tests/crash/checks.py`), and the test that is named must fail.",
        "",
        "| check | where | caught by |",
        "|---|---|---|",
    ]
    for check in CHECKS:
        catcher = check.catcher if caught()[check.name] else "**NOT CAUGHT**"
        where = f"`{check.site.module}` {check.site.function}"
        lines.append(f"| {check.name} | {where} | `{catcher}` |")
    return lines
