"""Pictures and sounds as parts of chats. Pictures are seen through a projector of random weights: the same picture in each form gives the same answer."""
import array
import base64
import ctypes
import random
import struct
import sys
import zlib

import pytest

import foredraft
from conftest import CONFIG, TARGET

WIDTH, HEIGHT = 40, 24
#: The sizes of the projector: its layers, its patches, the side of the pictures that it was made for, and how many patches beside each other are a row.
INNER, PATCH, IMAGE, MERGE = 16, 4, 16, 2
RGB = random.Random(1).randbytes(WIDTH * HEIGHT * 3)


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def write_projector(path, n_embd):
    """Writes an mmproj file of LFM2's kind."""
    chance = random.Random(2)
    entries = [
        text("general.architecture") + struct.pack("<I", 8) + text("clip"),
        text("clip.projector_type") + struct.pack("<I", 8) + text("lfm2"),
        text("clip.has_vision_encoder") + struct.pack("<IB", 7, 1),
        text("clip.use_gelu") + struct.pack("<IB", 7, 1),
        text("clip.vision.attention.layer_norm_epsilon") + struct.pack("<If", 6, 1e-6),
    ]
    numbers = {
        "embedding_length": INNER, "attention.head_count": 2, "feed_forward_length": 2 * INNER, "block_count": 1, "projection_dim": n_embd,
        "image_size": IMAGE, "patch_size": PATCH, "projector.scale_factor": MERGE,
    }
    entries += [text(f"clip.vision.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items()]
    entries += [text(f"clip.vision.image_{key}") + struct.pack("<IIQ3f", 9, 6, 3, 0.5, 0.5, 0.5) for key in ("mean", "std")]
    layers = {"attn_q": INNER, "attn_k": INNER, "attn_v": INNER, "attn_out": INNER, "ffn_up": 2 * INNER}
    shapes = {f"v.blk.0.{name}.weight": [INNER, n] for name, n in layers.items()} | {
        "v.blk.0.ffn_down.weight": [2 * INNER, INNER], "v.patch_embd.weight": [PATCH, PATCH, 3, INNER],
        "v.position_embd.weight": [INNER, (IMAGE // PATCH) ** 2], "mm.1.weight": [INNER * MERGE * MERGE, INNER], "mm.2.weight": [INNER, n_embd],
    }
    shapes |= {name.replace("weight", "bias"): shape[-1:] for name, shape in shapes.items() if "position" not in name}
    shapes |= {f"v.{name}.{part}": [INNER] for name in ("post_ln", "blk.0.ln1", "blk.0.ln2") for part in ("weight", "bias")}
    infos, data = b"", b""
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        infos += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += struct.pack(f"<{count}f", *(chance.uniform(-0.4, 0.4) for _ in range(count)))
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(entries)) + b"".join(entries) + infos
    path.write_bytes(head + bytes(-len(head) % 32) + data)


def png(width, height, rgb, **how):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + rgb[at:at + 3 * width] for at in range(0, len(rgb), 3 * width))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    compress = zlib.compressobj(**how)
    data = compress.compress(lines) + compress.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def pixels(**more):
    return {"type": "image", "width": WIDTH, "height": HEIGHT, "format": "rgb8", **more}


def encoded(data):
    return base64.b64encode(data).decode()


def messages(*pictures):
    parts = [{"type": "text", "text": "What is in"}, *pictures, {"type": "text", "text": "and what is left of it?"}]
    return [{"role": "user", "content": parts}]


OPTIONS = {"n_predict": 16, "temperature": 0.9, "seed": 3, "ignore_eos": True, "cache_prompt": False, "return_tokens": True}


@pytest.fixture(scope="module", params=[False, True][: 1 + (sys.platform == "linux")], ids=lambda isolate: "isolated" if isolate else "here")
def eyes(request, tmp_path_factory):
    with foredraft.Engine(TARGET, **CONFIG) as blind:
        n_embd = blind.model_info()["n_embd"]
    path = tmp_path_factory.mktemp("projector") / "mmproj.gguf"
    write_projector(path, n_embd)
    with foredraft.Engine(TARGET, mmproj=path, isolate=request.param, **CONFIG) as engine:
        yield engine


def test_each_form_of_a_picture_gives_the_same_answer(eyes, tmp_path):
    assert eyes.status()["mmproj"]["vision"] is True
    file = png(WIDTH, HEIGHT, RGB)
    path = tmp_path / "picture.png"
    path.write_bytes(file)
    rgba = b"".join(RGB[at:at + 3] + b"\x4d" for at in range(0, len(RGB), 3))
    buffer = ctypes.create_string_buffer(RGB, len(RGB))
    forms = {
        "pixels": pixels(base64=encoded(RGB)),
        "pixels with alpha": pixels(format="rgba8", base64=encoded(rgba)),
        "data": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(file)}"}},
        "path": {"type": "image_url", "image_url": {"url": str(path)}},
        "file URI": {"type": "image_url", "image_url": {"url": path.as_uri()}},
        "a file's bytes": foredraft.picture(file),
        "a file's path": foredraft.picture(path),
        "a buffer": foredraft.picture(memoryview(RGB).cast("B", (HEIGHT, WIDTH, 3))),
        "a buffer with alpha": foredraft.picture(memoryview(rgba).cast("B", (HEIGHT, WIDTH, 4))),
    }
    try:
        import PIL.Image
    except ImportError:
        pass
    else:
        forms["Pillow"] = foredraft.picture(PIL.Image.frombytes("RGBA", (WIDTH, HEIGHT), rgba))
    if sys.platform == "linux":
        forms["memory"] = pixels(address=ctypes.addressof(buffer))
        try:
            import numpy
        except ImportError:
            pass
        else:
            image = numpy.frombuffer(RGB, dtype=numpy.uint8).reshape(HEIGHT, WIDTH, 3).copy()
            forms["numpy"] = pixels(address=image.ctypes.data)
            forms["a part of an array"] = foredraft.picture(numpy.pad(image, ((1, 1), (2, 2), (0, 0)))[1:-1, 2:-2])
    answers = {name: eyes.chat(messages(form), **OPTIONS).text for name, form in forms.items()}
    assert len(set(answers.values())) == 1, answers
    other = eyes.chat(messages(pixels(base64=encoded(bytes(reversed(RGB))))), **OPTIONS).text
    assert other != answers["pixels"]


def test_each_compression_of_a_png_is_read(eyes):
    smooth = bytes(at % 200 + at // 700 for at in range(WIDTH * HEIGHT * 3))
    strategies = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED)
    files = [png(WIDTH, HEIGHT, smooth, level=level, strategy=strategy) for level in (0, 1, 9) for strategy in strategies]
    expected = eyes.chat(messages(pixels(base64=encoded(smooth))), **OPTIONS).text
    for file in files:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(file)}"}}
        assert eyes.chat(messages(part), **OPTIONS).text == expected


def test_rows_of_pictures_are_counted(eyes):
    picture = pixels(base64=encoded(RGB))
    counts = [eyes.complete(messages=messages(*[picture] * n), **OPTIONS)["prompt_stats"]["total_prompt_tokens"] for n in range(1, 4)]
    assert counts[2] - counts[1] == counts[1] - counts[0] > 4, counts
    assert eyes.apply_template(messages(picture, picture)).count("<__media__>") == 2


def test_pictures_that_cannot_be_read_are_errors(eyes):
    for picture, expected in [
        (pixels(base64=encoded(RGB[:-1])), "expected 2880 bytes"),
        (pixels(address=0), "address"),
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "nothing is downloaded"),
        ({"type": "image_url", "image_url": {"url": "/no/such/file.png"}}, "cannot be read"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "expected a PNG"),
    ]:
        with pytest.raises(foredraft.ForedraftError, match=expected):
            eyes.chat(messages(picture), **OPTIONS)


def wav_of(part):
    file = base64.b64decode(part["input_audio"]["data"])
    assert file[:4] + file[8:16] + file[36:40] == b"RIFFWAVEfmt data"
    assert struct.unpack_from("<I", file, 4)[0] == len(file) - 8 and struct.unpack_from("<I", file, 40)[0] == len(file) - 44
    return struct.unpack_from("<IHHIIHH", file, 16), file[44:]


def test_samples_become_wav_files(tmp_path):
    floats, integers = array.array("f", [0, 0.5, -0.5, 1]), array.array("h", [1, -2, 3, -4])
    assert wav_of(foredraft.sound(floats, 16000)) == ((16, 3, 1, 16000, 64000, 4, 32), floats.tobytes())
    two_channels = memoryview(integers.tobytes()).cast("h", (2, 2))
    assert wav_of(foredraft.sound(two_channels, 8000)) == ((16, 1, 2, 8000, 32000, 4, 16), integers.tobytes())
    assert foredraft.sound(b"fLaC") == {"type": "input_audio", "input_audio": {"data": "ZkxhQw=="}}
    assert foredraft.sound(tmp_path / "a.mp3")["input_audio"] == {"path": str(tmp_path / "a.mp3")}
    for bad, rate in [(floats, None), (array.array("B", [1]), 16000), (memoryview(bytes(8)).cast("f", (2, 1, 1)), 16000)]:
        with pytest.raises(ValueError, match="sound: expected"):
            foredraft.sound(bad, rate)
    with pytest.raises(ValueError, match=r"picture: expected .* got B of \(2, 2\)"):
        foredraft.picture(memoryview(bytes(4)).cast("B", (2, 2)))
