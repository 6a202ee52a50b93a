"""What people see of a report: pages in headless Chromium, light and dark, wide and narrow."""

import html
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import unittest
import zlib
from collections import Counter

from support import ProgramTest
from test_ab import SMALL, SWAP

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                None)

# Runs inside the page, in a frame of a given width; the frame's page is told what was seen.
LOOK = """
<script>
addEventListener("load", () => {
  const faults = [], root = document.documentElement;
  if (root.scrollWidth > root.clientWidth)
    faults.push(`the page is ${root.scrollWidth} wide, the window ${root.clientWidth}`);
  for (const svg of document.querySelectorAll("svg.chart")) {
    const name = svg.querySelector("title").textContent, frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].map(t => [t.textContent,
                                                              t.getBoundingClientRect()]);
    for (const [text, box] of texts) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 ||
          box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        faults.push(`${name}: "${text}" leaves the picture`);
    }
    for (let i = 0; i < texts.length; i++)
      for (let j = 0; j < i; j++) {
        const a = texts[i][1], b = texts[j][1];
        // Boxes of lines that follow each other touch; their letters do not.
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 0.3 * a.height)
          faults.push(`${name}: "${texts[i][0]}" lies over "${texts[j][0]}"`);
      }
  }
  const width = document.querySelectorAll("svg.chart").length;
  parent.document.querySelector("#seen").textContent = JSON.stringify({faults, charts: width});
});
</script>
"""


def pixels(png):
    """(width, rows of bytes, bytes per pixel) of an 8-bit PNG without interlacing."""
    at, data = 8, b""
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        body = png[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, color, _, _, interlace = struct.unpack(">IIBBBBB", body)
            assert (depth, interlace) == (8, 0)
            n = {2: 3, 6: 4}[color]
        elif kind == b"IDAT":
            data += body
        at += 12 + size
    raw, rows, before = zlib.decompress(data), [], bytes(width * n)
    for y in range(height):
        start = y * (width * n + 1)
        method, line = raw[start], bytearray(raw[start + 1:start + 1 + width * n])
        for x in range(len(line)):
            a = line[x - n] if x >= n else 0
            b, c = before[x], before[x - n] if x >= n else 0
            if method == 1:
                line[x] = (line[x] + a) & 255
            elif method == 2:
                line[x] = (line[x] + b) & 255
            elif method == 3:
                line[x] = (line[x] + (a + b) // 2) & 255
            elif method == 4:
                p = a + b - c
                near = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
                line[x] = (line[x] + near) & 255
        before = bytes(line)
        rows.append(before)
    return width, rows, n


class ReportPage(ProgramTest):
    def chromium(self, *arguments):
        done = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={self.path('profile')}", *arguments],
            capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode("utf-8", "replace")

    def colors(self, page, *arguments):
        """How often each color is seen in a picture of the page's beginning."""
        picture = self.folder / "picture.png"
        picture.unlink(missing_ok=True)
        self.chromium("--window-size=800,900", f"--screenshot={picture}", *arguments,
                      pathlib.Path(page).as_uri())
        width, rows, n = pixels(picture.read_bytes())
        self.assertEqual((width, len(rows)), (800, 900))
        return Counter(row[i:i + 3] for row in rows[::2] for i in range(0, len(row), n))

    def look_at(self, page, n_charts):
        text = pathlib.Path(page).read_text("utf-8")
        for width in (360, 800, 1400):
            frame = self.write("frame.html", f'<!DOCTYPE html><pre id="seen"></pre><iframe '
                                             f'style="width:{width}px;height:4000px;border:0" '
                                             f'srcdoc="{html.escape(text + LOOK)}"></iframe>')
            seen = self.chromium("--virtual-time-budget=5000", "--dump-dom",
                                 pathlib.Path(frame).as_uri())
            told = json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', seen)[1]))
            self.assertEqual(told["faults"], [], f"{page} at {width}")
            self.assertEqual(told["charts"], n_charts)

    def look_at_colors(self, page):
        light = self.colors(page)
        dark = self.colors(page, "--blink-settings=preferredColorScheme=0")
        for seen, is_dark in ((light, False), (dark, True)):
            (paper, _), = seen.most_common(1)
            self.assertGreater(len(seen), 50, "a blank picture")
            self.assertLess(seen[paper], 0.99 * sum(seen.values()))
            (self.assertLess if is_dark else self.assertGreater)(sum(paper), 3 * 128)

    def report(self, *arguments):
        batch = self.batch([{"id": f"a prompt with a name that is rather long, number {i}",
                             "tokens": [(j * 37 + i) % 300 + 1 for j in range(60)],
                             "max_tokens": 16, "ignore_eos": True} for i in range(3)])
        manifest = self.write("m.toml", SMALL.format(max_context=256, max_sequences=1) +
                              SWAP.format(module="swap_lru", slots=8, staging="demand"))
        self.expect(0, "ab", manifest, "-i", batch, "-o", self.path("report"), *arguments)
        return self.path("report/report.html")

    def test_a_report_is_read_on_any_screen(self):
        page = self.report("--b", "swap.module=swap_adaptive", "--set", "swap.slots=9", "--set",
                           "swap.staging=demand", "--rounds", "3", "--b",
                           "attention.kv_format=fp8", "--b", "attention.index_format=fp4")
        self.assertIn("first difference at", pathlib.Path(page).read_text())
        self.look_at(page, 7)
        self.look_at_colors(page)

    def test_a_report_is_read_on_paper(self):
        page = self.report("--rounds", "2")
        sheet = self.folder / "report.pdf"
        self.chromium(f"--print-to-pdf={sheet}", pathlib.Path(page).as_uri())
        data = sheet.read_bytes()
        self.assertTrue(data.startswith(b"%PDF"))
        self.assertGreater(len(re.findall(rb"/Type\s*/Page\b", data)), 1)

    def test_long_runs_many_sides_names_and_one_round_fit_as_well(self):
        page = self.report("--rounds", "1", "--a", f"engine.name={'a very long name ' * 6}", "--b",
                           f"engine.name={'WWWWWWWWWWWW' * 6}")
        self.look_at(page, 6)

    def test_plots_of_bench_and_replay(self):
        manifest = self.write("m.toml", SMALL.format(max_context=1024, max_sequences=4) +
                              SWAP.format(module="swap_lru", slots=8, staging="demand"))
        page = self.path("bench.html")
        self.expect(0, "bench", manifest, "--frontiers", "64,128,300", "--new", "3", "--batch",
                    "1,4", "--plot", page)
        self.look_at(page, 2)
        self.look_at_colors(page)
        self.report("--rounds", "1")
        page = self.path("curve.html")
        self.expect(0, "replay", self.path("report/a.trace"), "--slots", "8,10,12,16",
                    "--policy", "swap_lru", "--policy", "swap_adaptive", "--policy",
                    "swap_score:half_life=8,recency=3", "--plot", page)
        self.look_at(page, 1)
        picture = self.path("curve.svg")
        self.expect(0, "replay", self.path("report/a.trace"), "--slots", "8,10,12,16", "--plot",
                    picture)
        self.look_at_colors(picture)


if __name__ == "__main__":
    if CHROMIUM is None:
        print("SKIPPED: no chromium here (Debian and Ubuntu: apt install chromium): no page was "
              "looked at", flush=True)
        sys.exit(77)
    unittest.main()
