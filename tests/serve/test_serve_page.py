"""The page in a real browser: files, the microphone, reading along, editing, downloads, errors."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_examples import RATE, SURE, at_a_port, encode, make_app, speak
from speaker_examples import MODELS, make_audio

from asr.serve.service import Keys
from asr.speakers import speaker_models
from asr.transcription.model import Model

pytest.importorskip("playwright")
from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")]

AUDIO = speak(6.0)


@pytest.fixture(scope="module")
def address(recognizer: Any) -> Iterator[str]:
    with at_a_port(make_app(recognizer=recognizer)) as address:
        yield f"http://{address}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Its microphone plays a file in a loop."""
    microphone = tmp_path_factory.mktemp("microphone") / "speech.wav"
    microphone.write_bytes(encode(np.concatenate([np.zeros(RATE, np.float32), speak(5.0)])))
    arguments = [
        "--no-sandbox",
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={microphone}",
        "--autoplay-policy=no-user-gesture-required",
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Page]:
    yield from open_page(browser, address)


def open_page(browser: Any, address: str, **options: Any) -> Iterator[Page]:
    context = browser.new_context(accept_downloads=True, **options)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if "Content Security" in line.text else None)
    page.goto(address)
    yield page
    context.close()
    assert not problems


def give(page: Page, content: bytes, name: str = "my talk.wav") -> None:
    page.set_input_files("#file", {"name": name, "mimeType": "audio/wav", "buffer": content})


def transcribe(page: Page) -> None:
    give(page, encode(AUDIO))
    expect(page.locator("#status")).to_have_text("Done", timeout=20_000)


def test_a_file_becomes_text_with_times(page: Page, recognizer: Any) -> None:
    expected = Model(recognizer).transcribe(AUDIO, RATE, decoding=SURE)
    transcribe(page)
    assert page.locator(".segment p").all_inner_texts() == [one.text for one in expected.segments]
    assert page.locator(".word").count() == len(expected.words)
    assert page.locator(".word.unsure, .word.doubtful").count() > 0
    expect(page.locator("#error")).to_be_hidden()


def test_a_dropped_file_is_transcribed(page: Page) -> None:
    page.evaluate(
        """bytes => {
            const file = new File([new Uint8Array(bytes)], "dropped.wav"), data = new DataTransfer();
            data.items.add(file);
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
        }""",
        list(encode(speak(2.0))),
    )
    expect(page.locator("#status")).to_have_text("Done", timeout=20_000)


def test_words_are_highlighted_during_playback_and_a_click_jumps(page: Page) -> None:
    transcribe(page)
    word = page.locator(".word").last
    start = word.evaluate("span => span.times.start")
    word.click()
    expect(page.locator(".word.now")).to_have_count(1)
    assert page.locator("#player").evaluate("player => player.currentTime") >= start - 0.01
    page.locator("#player").evaluate("player => { player.pause(); player.currentTime = 0; }")
    expect(page.locator(".word.now")).to_have_count(0)
    page.locator(".segment button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.locator("#player").evaluate("player => player.currentTime") > 1


def test_edited_text_is_downloaded(page: Page) -> None:
    transcribe(page)
    page.get_by_role("button", name="Edit").click()
    page.locator(".segment p").first.fill("Hello  <b>world</b> --> & all")
    page.get_by_role("button", name="Edit").click()
    assert page.locator(".segment p").first.inner_text().split() == [
        "Hello",
        "<b>world</b>",
        "-->",
        "&",
        "all",
    ]
    saved = {name: download(page, name) for name in ("txt", "srt", "vtt", "json")}
    assert saved["txt"].startswith("Hello <b>world</b> --> & all\n")
    assert re.match(r"1\n00:00:00,\d{3} --> 00:00:01,\d{3}\nHello <b>world</b> → & all\n\n2\n", saved["srt"])
    assert saved["vtt"].startswith("WEBVTT\n\n00:00:00.")
    assert "Hello &lt;b&gt;world&lt;/b&gt; --&gt; &amp;" in saved["vtt"]
    record = json.loads(saved["json"])
    assert (record["id"], record["audio"]) == ("my talk", "my talk.wav")
    assert record["segments"][0]["text"].startswith("Hello") and len(record["segments"][0]["words"]) == 5


def download(page: Page, name: str) -> str:
    with page.expect_download() as caught:
        page.get_by_role("button", name=name, exact=True).click()
    assert caught.value.suggested_filename == f"my talk.{name}"
    return Path(caught.value.path()).read_text(encoding="utf-8")


def test_speakers_are_renamed_everywhere(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaker_models, "PACKAGE", "no_package")
    page.reload()
    expect(page.get_by_label("Label speakers")).to_be_disabled()
    expect(page.get_by_label("Label speakers")).to_have_accessible_description(
        "(speaker models not installed)"
    )
    monkeypatch.setattr(speaker_models, "load_speaker_models", lambda path, device: MODELS)
    monkeypatch.setattr(
        speaker_models, "find_speaker_models", lambda path: {"embedding": 1, "segmentation": 2}
    )
    page.reload()
    page.get_by_label("Label speakers").check()
    give(page, encode(make_audio([(0.2, 2.2, 0), (2.6, 4.6, 1), (5.0, 7.0, 0)], 7.5)))
    expect(page.locator("#status")).to_have_text("Done", timeout=20_000)
    labels = page.locator(".speaker").all_inner_texts()
    assert set(labels) == {"SPEAKER_00", "SPEAKER_01"} and labels.count("SPEAKER_00") > 1
    colors = page.locator(".speaker").evaluate_all(
        "all => all.map(one => getComputedStyle(one).borderLeftColor)"
    )
    assert len(set(zip(labels, colors, strict=True))) == len(set(colors)) == 2
    page.once("dialog", lambda dialog: dialog.accept("Ann <b>"))
    page.locator(".speaker").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".speaker").first).to_be_focused()
    renamed = [label.replace("SPEAKER_00", "Ann <b>") for label in labels]
    assert page.locator(".speaker").all_inner_texts() == renamed
    saved = {name: download(page, name) for name in ("txt", "srt", "vtt", "json")}
    assert saved["txt"].startswith("Ann <b>: ") and "\nAnn <b>: " in saved["srt"]
    assert "<v Ann &lt;b&gt;>" in saved["vtt"] and "SPEAKER_00" not in "".join(saved.values())
    assert [one["speaker"] for one in json.loads(saved["json"])["segments"]] == renamed


def test_microphone_input_becomes_text_while_recording(page: Page) -> None:
    page.get_by_role("button", name="Talk").click()
    expect(page.locator("#status")).to_have_text("Listening")
    expect(page.locator("#partial")).not_to_be_empty(timeout=20_000)
    assert page.locator("#level").evaluate("meter => meter.value") > 0
    expect(page.locator(".segment")).not_to_have_count(0, timeout=20_000)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#status")).to_have_text("Done", timeout=20_000)
    expect(page.get_by_role("button", name="Talk")).to_be_visible()
    duration = page.locator("#player").evaluate(
        "player => player.readyState ? player.duration : new Promise(done => player.onloadedmetadata = () => done(player.duration))"
    )
    end = page.locator(".word").last.evaluate("span => span.times.end")
    assert 1 < end <= duration + 0.1, "what was said can be played"


def test_errors_are_shown(page: Page) -> None:
    give(page, b"no audio at all", "notes.txt")
    expect(page.get_by_role("alert")).to_contain_text("notes.txt")
    transcribe(page)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_several_files_are_done_in_turn_even_after_a_failure(page: Page) -> None:
    """Each has its own text, language and speakers; edits stay when another file is shown."""
    talks = [(f"talk {number}.wav", encode(speak(3.0, 10 * number))) for number in (1, 2)]
    files = [talks[0], ("broken.wav", b"no audio at all"), talks[1]]
    page.set_input_files(
        "#file", [{"name": name, "mimeType": "audio/wav", "buffer": content} for name, content in files]
    )
    rows = page.locator("#jobs button")
    expect(rows.nth(2)).to_contain_text("Done, ", timeout=20_000)
    expect(rows.nth(0)).to_contain_text(re.compile(r"^talk 1\.wav\s*Done, [A-Z]"))
    expect(rows.nth(1)).to_contain_text("broken.wav: ")
    expect(page.locator("#cancel")).to_be_hidden()
    expect(page.get_by_role("heading", name="talk 1.wav")).to_contain_text(
        re.compile(r"[A-Z][a-z ]+ \(detected\)")
    )
    expect(page.get_by_role("alert")).to_be_hidden()
    page.get_by_role("button", name="Edit").click()
    page.locator(".segment p").first.fill("My words")
    rows.nth(1).click()
    expect(page.get_by_role("alert")).to_contain_text("broken.wav")
    assert page.locator(".segment").count() == 0
    rows.nth(2).click()
    assert "My words" not in page.locator("#transcript").inner_text()
    rows.nth(0).click()
    assert page.locator(".segment p").first.inner_text() == "My words"


def test_enabled_controls_look_enabled(page: Page) -> None:
    assert page.locator("#language option").first.inner_text() == "Detect"
    assert "German" in page.locator("#language option").all_inner_texts()
    transcribe(page)
    page.get_by_label("Label speakers").evaluate("box => { box.disabled = true; }")
    looks = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select")].filter(e => e.checkVisibility())
            .map(e => [e.disabled, getComputedStyle(e).opacity < 1, e.id !== "choose" && e.matches("button")
                && getComputedStyle(e).color !== getComputedStyle(document.body).color])"""
    )
    assert all(disabled == faint and not pale for disabled, faint, pale in looks)


def test_the_page_asks_for_a_key(browser: Any, recognizer: Any) -> None:
    keys = Keys({"ann": hashlib.sha256(b"sesame").hexdigest()})
    with at_a_port(make_app(keys, recognizer)) as address:
        for page in open_page(browser, f"http://{address}"):
            page.get_by_label("API key").fill("wrong")
            page.keyboard.press("Enter")
            expect(page.get_by_role("alert")).to_contain_text("does not accept this API key")
            page.get_by_label("API key").fill("sesame")
            page.keyboard.press("Enter")
            expect(page.locator("#model option")).to_have_count(1)
            transcribe(page)
            page.get_by_role("button", name="Talk").click()
            expect(page.locator("#status")).to_have_text("Listening")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_works_with_the_keyboard(browser: Any, address: str, scheme: str) -> None:
    for page in open_page(browser, address, viewport={"width": 360, "height": 640}, color_scheme=scheme):
        transcribe(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        reached = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        assert {"choose", "talk", "model", "language", "player", "edit", "shade", "srt"} <= reached
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, audio, progress, meter")]
                .filter(e => e.checkVisibility() && !(e.labels?.length || e.ariaLabel || e.textContent.trim()))
                .map(e => e.outerHTML)"""
        )
        assert not unnamed
