"""Load a running `asr serve` with clips, long files, live sessions, disconnecting clients and bad uploads.

    asr serve --model base.en --port 8000 &
    python tools/load_server.py http://127.0.0.1:8000 CLIP*.wav LONG.wav --seconds 1800 --clips 4 --live 2

Each client sends its next request when it has its answer. With --rate, clips are sent at random moments
instead, as from independent people, whether or not earlier ones have been answered. Prints one JSON object:
the number of answers of each kind and their times, the delays until live words were shown and final (the
last word of an item counts from its own end, the others wait for it), and the time of /health, which shows
whether the event loop is responsive. With --pid, it also has the largest resident memory of the server in
the first and last third.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import random
import socket
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from asr.audio import reading

LIVE_RATE = 16_000
PIECE_SECONDS = 0.1
LAST_SECONDS = 60.0  # time for answers to clips that were sent before the end
HOSTILE = [
    b"",
    b"#EXTM3U\nhttp://127.0.0.1:9/\n",
    b"RIFF\xff\xff\xff\xffWAVE",
    b"\xff\xfb" * 5000,
    bytes(100_000),
]


class Load:
    """State shared by all clients: the server, what they send, and what they measure."""

    def __init__(self, url: str, model: str, clips: list[Path], long: Path, seconds: float) -> None:
        self.url, self.model, self.clips = url.rstrip("/"), model, clips
        self.long = long
        self.begun = time.monotonic()
        self.end = self.begun + seconds
        self.times: dict[str, list[float]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        self.memory: list[int] = []
        self.asking: list[threading.Thread] = []

    def repeat(self, work: Callable[[], None]) -> None:
        while time.monotonic() < self.end:
            work()

    def post(self, kind: str, content: bytes) -> None:
        """Measure the time until the answer; count refusals by status and try again later."""
        begun = time.monotonic()
        try:
            with urllib.request.urlopen(self.make_request(content), timeout=3600) as answer:
                answer.read()
            self.counts[f"{kind} 200"] += 1
            self.times[kind].append(time.monotonic() - begun)
        except urllib.error.HTTPError as error:
            self.counts[f"{kind} {error.code}"] += 1
            time.sleep(min(float(error.headers.get("retry-after", 0)), max(0.0, self.end - time.monotonic())))
        except (OSError, ValueError) as error:
            self.counts[f"{kind} {type(error).__name__}"] += 1

    def make_request(self, content: bytes) -> urllib.request.Request:
        body = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n' + self.model.encode()
        body += b'\r\n--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + content
        headers = {"content-type": "multipart/form-data; boundary=b"}
        url = f"{self.url}/v1/audio/transcriptions"
        return urllib.request.Request(url, body + b"\r\n--b--\r\n", headers)

    # --- kinds of clients -------------------------------------------------------------------------

    def ask_clip(self) -> None:
        self.post("clip", random.choice(self.clips).read_bytes())

    def ask_at_random(self, rate: float) -> None:
        """Return a clip from a new client, and the pause until the next one."""
        self.asking.append(threading.Thread(target=self.ask_clip, daemon=True))
        self.asking[-1].start()
        time.sleep(random.expovariate(rate))

    def ask_long(self) -> None:
        self.post("long file", self.long.read_bytes())

    def send_hostile(self) -> None:
        self.post("hostile", random.choice(HOSTILE))
        time.sleep(1)

    def leave(self) -> None:
        """Send a file, or a part of it, and disconnect."""
        request = self.make_request(random.choice(self.clips).read_bytes())
        assert isinstance(request.data, bytes)
        place = urlsplit(self.url)
        with (
            contextlib.suppress(OSError),
            socket.create_connection((place.hostname, place.port or 80), 10) as link,
        ):
            head = f"POST {urlsplit(request.full_url).path} HTTP/1.1\r\nhost: {place.netloc}\r\n"
            head += f"content-type: {request.get_header('Content-type')}\r\n"
            head += f"content-length: {len(request.data)}\r\n\r\n"
            link.sendall(head.encode() + request.data[: random.choice([100, len(request.data)])])
            time.sleep(random.random())
        self.counts["left"] += 1

    def talk(self) -> None:
        """Send a clip at the pace of speech; measure when words are first shown and final after their end."""
        samples = (reading.read(random.choice(self.clips), LIVE_RATE) * 32767).astype("<i2")
        url = f"{self.url.replace('http', 'ws', 1)}/v1/realtime?intent=transcription&model={self.model}"
        size = round(PIECE_SECONDS * LIVE_RATE)
        audio = {"input": {"format": {"type": "audio/pcm", "rate": LIVE_RATE}}}
        session = {"type": "transcription", "audio": audio, "include": ["asr.partial", "asr.words"]}
        try:
            with connect(url, open_timeout=30) as link:
                link.send(json.dumps({"type": "session.update", "session": session}))
                begun = time.monotonic()
                listening = threading.Thread(target=self.listen, args=(link, begun), daemon=True)
                listening.start()
                for first in range(0, len(samples), size):
                    time.sleep(max(0.0, begun + first / LIVE_RATE - time.monotonic()))
                    piece = base64.b64encode(samples[first : first + size].tobytes()).decode()
                    link.send(json.dumps({"type": "input_audio_buffer.append", "audio": piece}))
                link.send(json.dumps({"type": "input_audio_buffer.commit"}))
                link.send(json.dumps({"type": "input_audio_buffer.clear"}))
                listening.join(60)
            self.counts["live session"] += 1
        except (OSError, WebSocketException) as error:
            self.counts[f"live {type(error).__name__}"] += 1
            time.sleep(1)

    def listen(self, link: object, begun: float) -> None:
        shown: list[float] = []  # when a longer text was seen for the first time in this item
        longest = 0
        with contextlib.suppress(WebSocketException):
            for text in link:  # type: ignore[attr-defined]
                event, now = json.loads(text), time.monotonic() - begun
                if event["type"] == "asr.partial":
                    count = len(f"{event['stable']} {event['text']}".split())
                    shown += [now] * (count - longest)
                    longest = max(longest, count)
                if event["type"] == "asr.words":
                    for word, first in zip(event["words"], shown, strict=False):
                        self.times["live word shown"].append(first - word["end"])
                    self.times["live word final"] += [now - word["end"] for word in event["words"]]
                    self.times["live item final"] += [now - word["end"] for word in event["words"][-1:]]
                    shown, longest = [], 0
                if event["type"] == "input_audio_buffer.cleared":
                    return

    def ping(self) -> None:
        begun = time.monotonic()
        try:
            urllib.request.urlopen(f"{self.url}/health", timeout=60).read()
            self.times["ping"].append(time.monotonic() - begun)
        except OSError as error:
            self.counts[f"ping {type(error).__name__}"] += 1
        time.sleep(0.05)

    def watch_memory(self, pid: int) -> None:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                self.memory.append(int(line.split()[1]) // 1024)
        time.sleep(0.5)

    def await_answers(self) -> None:
        """Send clips at random moments, and count those that wait for more than a minute."""
        end = time.monotonic() + LAST_SECONDS
        for thread in self.asking:
            thread.join(max(0.0, end - time.monotonic()))
        self.counts["clip without an answer"] += sum(thread.is_alive() for thread in self.asking)

    def describe(self) -> dict[str, object]:
        third = max(1, len(self.memory) // 3)
        memory = (
            {"first_third": max(self.memory[:third]), "last_third": max(self.memory[-third:])}
            if self.memory
            else {}
        )
        return {
            "seconds": round(time.monotonic() - self.begun, 1),
            "counts": dict(sorted(self.counts.items())),
            "times": {kind: describe_times(times) for kind, times in sorted(self.times.items())},
            "memory_mib": memory,
        }


def describe_times(times: list[float]) -> dict[str, float]:
    """Seconds."""
    cuts = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    return {"n": len(times), **{f"p{share}": round(cuts[share - 1], 3) for share in (50, 95, 99)}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument(
        "clip", type=Path, nargs="+", help="a few seconds of speech; also sent by live sessions"
    )
    parser.add_argument("long", type=Path, help="minutes of speech")
    parser.add_argument("--model", default="base.en")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clips", type=int, default=4, metavar="N", help="clients that send the clip")
    parser.add_argument(
        "--rate", type=float, metavar="N", help="clips per second, at random moments, instead of --clips"
    )
    parser.add_argument("--files", type=int, default=1, metavar="N", help="clients that send the long file")
    parser.add_argument("--live", type=int, default=1, metavar="N", help="live sessions")
    parser.add_argument("--leaving", type=int, default=1, metavar="N", help="clients that disconnect early")
    parser.add_argument("--hostile", type=int, default=1, metavar="N", help="clients that send invalid audio")
    parser.add_argument("--pid", type=int, help="process ID of the server, to watch its memory")
    args = parser.parse_args()
    load = Load(args.url, args.model, args.clip, args.long, args.seconds)
    works = [load.ping] + [load.ask_long] * args.files
    works += [lambda: load.ask_at_random(args.rate)] if args.rate else [load.ask_clip] * args.clips
    works += [load.talk] * args.live + [load.leave] * args.leaving + [load.send_hostile] * args.hostile
    if args.pid:
        works.append(lambda: load.watch_memory(args.pid))
    threads = [threading.Thread(target=load.repeat, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.await_answers()
    print(json.dumps(load.describe(), indent=2))


if __name__ == "__main__":
    main()
