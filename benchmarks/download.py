"""Benchmark: download images, resize them to 256 px or keep them, and write tars, on one core.

    python -m benchmarks.download [n_images] [--cases CASE ...]

This project is compared with img2dataset (its shard loop is called directly: 32 threads, webdataset, sha256, otherwise
defaults, so that its startup time is not included) and with a bare asyncio client, which checks nothing. All fetch the
same URLs in alternating rounds; `web.py` serves them on another core. In the cases `keep`, images are stored as
they come: this project and img2dataset verify each by decoding it, the bare client does not. `client` is this project
with `download.client=img2dataset`.

The ratios compare CPU time per image, which hardly depends on other load, and `ratio_wall` wall-clock time. `ratio` is
the one to img2dataset in the first case. PSNR compares images stored by either side at 1,500 px with those that
Pillow's Lanczos filter makes from the full picture.
"""

import argparse
import datetime
import ipaddress
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import PIL.Image

from benchmarks.downloaders import SIZE, build_bare, build_client, build_img2dataset, build_ours
from benchmarks.turns import take_turns
from benchmarks.web import N_IMAGES, make_jpeg
from hypergrit_common.images import decode

ROUNDS: Final = 3
BUILDERS: Final = {"img2dataset": build_img2dataset, "bare": build_bare, "client": build_client, "ours": build_ours}
CASES: Final = {
    "http-500": ("http", 500, True),
    "http-1500": ("http", 1500, True),
    "https-500": ("https", 500, True),
    "http-500-keep": ("http", 500, False),
    "http-1500-keep": ("http", 1500, False),
}
"""Case -> scheme, longer side of the images in pixels, and whether they are resized."""


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 and its key, and let the TLS contexts of this process trust it.

    They load it together with the usual certificates, which takes most of the time of a new context.
    """
    import certifi
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    trusted = folder / "trusted.pem"
    trusted.write_bytes(Path(certifi.where()).read_bytes() + paths[0].read_bytes())
    os.environ["SSL_CERT_FILE"] = str(trusted)
    return paths


@contextmanager
def served(folder: Path) -> Iterator[dict[str, int]]:
    """Serve images from a process on the last core: scheme -> port. Pins this process to the first core."""
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "benchmarks.web", *map(str, write_certificate(folder))]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        os.sched_setaffinity(server.pid, {cores[-1]})
        os.sched_setaffinity(0, {cores[0]})
        assert server.stdout is not None
        yield dict(zip(("http", "https"), map(int, server.stdout.readline().split()), strict=True))
    finally:
        server.terminate()
        server.wait()


def time_alternately(runs: dict[str, Callable[[], int]], n: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median CPU and wall-clock seconds per image of each downloader, after a warm-up round."""

    def checked(name: str) -> None:
        kept = runs[name]()
        assert kept == n, f"{name} kept {kept} of {n} images"

    found = take_turns({name: partial(checked, name) for name in runs}, ROUNDS)
    return {name: times.cpu / n for name, times in found.items()}, {
        name: times.wall / n for name, times in found.items()
    }


def lanczos_psnr(tar: Path, side: int) -> float:
    """Return the mean PSNR in dB of the images of a tar against Pillow's Lanczos filter on the full pictures."""
    found = []
    with tarfile.open(tar) as file:
        members = {member.name: member for member in file}
        for name in sorted(name for name in members if name.endswith(".json"))[: N_IMAGES[side]]:
            url = json.loads(read_member(file, members[name]))["url"]
            full = decode(make_jpeg(int(url.rsplit("/", 1)[1]) % N_IMAGES[side], side))
            stored = decode(read_member(file, members[name.replace(".json", ".jpg")]))
            size = stored.shape[1], stored.shape[0]
            assert min(size) == SIZE
            wanted = np.asarray(PIL.Image.fromarray(full).resize(size, PIL.Image.Resampling.LANCZOS), np.float64)
            found.append(10 * np.log10(255**2 / np.mean((stored - wanted) ** 2)))
    return float(np.mean(found))


def read_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """Return the bytes of a file in a tar."""
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", nargs="?", type=int, default=500, help="number of images")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    args = parser.parse_args()
    result: dict[str, object] = {"name": "download"}
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as ports:
        folder = Path(name)
        print(f"{args.n} images, medians of {ROUNDS} rounds, one core")
        print(f"{'case':<16}{'downloader':<14}{'CPU us/image':>14}{'images/CPU-s':>14}{'images/s':>10}{'PSNR, dB':>10}")
        for case in args.cases:
            scheme, side, is_resized = CASES[case]
            urls = [f"{scheme}://127.0.0.1:{ports[scheme]}/{side}/{i}" for i in range(args.n)]
            runs = {name: build(urls, folder, is_resized) for name, build in BUILDERS.items()}
            cpu_s, wall_s = time_alternately(runs, args.n)
            tars = {side: folder / f"{'00000' if side == 'img2dataset' else side}.tar" for side in BUILDERS}
            psnr = {name: lanczos_psnr(tar, side) for name, tar in tars.items()} if is_resized else {}
            for name in runs:
                rates = f"{1e6 * cpu_s[name]:>14.0f}{1 / cpu_s[name]:>14.0f}{1 / wall_s[name]:>10.0f}"
                print(f"{case:<16}{name:<14}{rates}{f'{psnr[name]:.1f}' if psnr else '':>10}", flush=True)
            key = case.replace("-", "_")
            ratio = round(cpu_s["img2dataset"] / cpu_s["ours"], 2)
            result |= {key: ratio}
            result |= {f"{key}_{side}": round(cpu_s[side] / cpu_s["ours"], 2) for side in ("bare", "client")}
            if psnr:
                result[f"{key}_psnr_gain"] = round(psnr["ours"] - psnr["img2dataset"], 1)
            if "ratio" not in result:
                result |= {"ratio": ratio, "ratio_wall": round(wall_s["img2dataset"] / wall_s["ours"], 2)}
                result["images_per_cpu_s"] = round(1 / cpu_s["ours"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
