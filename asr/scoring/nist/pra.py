"""Aligned utterances as sclite writes them into its .pra files."""

from __future__ import annotations

from asr.scoring.result import Score, UtteranceScore, align_lines

HEAD = "\n\n\t\tDUMP OF SYSTEM ALIGNMENT STRUCTURE\n\nSystem name:   {}\n\nSpeakers: "


def write_pra(score: Score, title: str) -> str:
    """Every utterance: its counts, and below each other reference, hypothesis and errors."""
    speakers: dict[str, list[UtteranceScore]] = {}
    for utterance in score.utterances:
        speakers.setdefault(utterance.speaker or "unknown", []).append(utterance)
    names = [f"{number:5}:  {speaker}" for number, speaker in enumerate(speakers)]
    lines = [HEAD.format(title), *names, ""]
    for number, (speaker, utterances) in enumerate(speakers.items()):
        lines += [f"Speaker sentences{number:4}:  {speaker}   #utts: {len(utterances)}"]
        for utterance in utterances:
            counts = utterance.counts
            numbers = (counts.correct, counts.substitutions, counts.deletions, counts.insertions)
            lines += [
                f"id: ({utterance.id})",
                f"Scores: (#C #S #D #I) {' '.join(map(str, numbers))}",
                *(align_lines(utterance.operations) if counts.correct + counts.errors else []),
                "",
            ]
    return "\n".join([*lines, ""]) + "\n"
