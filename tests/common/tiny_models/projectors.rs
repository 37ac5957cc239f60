//! Projectors (mmproj files) with random weights, for models whose embeddings have `N_EMBD` numbers.

use super::{N_EMBD, TensorType, Writer, put_string};

const WIDTH: u64 = 16;
const PATCH: u64 = 4;
const IMAGE: u64 = 16;
/// The rows of a picture: each is made of the patches of a square of this side.
const MERGE: u64 = 2;
/// The frames of a sound that make a row.
const STACK: u64 = 60;

fn vision(projector: &str, n_layer: u64) -> Writer {
    vision_of(projector, n_layer, WIDTH)
}

/// An encoder whose layers are `width` wide.
fn vision_of(projector: &str, n_layer: u64, width: u64) -> Writer {
    let mut model = Writer::empty("clip");
    model.entry("general.architecture", 8, |bytes| put_string(bytes, "clip"));
    model.entry("clip.has_vision_encoder", 7, |bytes| bytes.push(1));
    model.entry("clip.use_gelu", 7, |bytes| bytes.push(1));
    model.entry("clip.projector_type", 8, |bytes| put_string(bytes, projector));
    for (key, value) in [
        ("embedding_length", width),
        ("attention.head_count", 2),
        ("feed_forward_length", 2 * width),
        ("block_count", n_layer),
        ("projection_dim", N_EMBD),
        ("image_size", IMAGE),
        ("patch_size", PATCH),
        ("projector.scale_factor", MERGE),
    ] {
        model.number(&format!("vision.{key}"), value);
    }
    model.float("vision.attention.layer_norm_epsilon", 1e-6);
    for key in ["clip.vision.image_mean", "clip.vision.image_std"] {
        model.entry(key, 9, |bytes| {
            bytes.extend(6_u32.to_le_bytes());
            bytes.extend(3_u64.to_le_bytes());
            (0..3).for_each(|_| bytes.extend(0.5_f32.to_le_bytes()));
        });
    }
    model.random("v.patch_embd.weight", &[PATCH, PATCH, 3, width], 0.3);
    model.random("v.patch_embd.bias", &[width], 0.1);
    model.random("v.position_embd.weight", &[width, (IMAGE / PATCH) * (IMAGE / PATCH)], 0.3);
    layers(&mut model, "v", n_layer, width);
    model
}

/// The layers of an encoder of pictures (`v`) or sounds (`a`).
fn layers(model: &mut Writer, encoder: &str, n_layer: u64, width: u64) {
    let norm = |model: &mut Writer, name: &str| {
        model.ones(&format!("{encoder}.{name}.weight"), width);
        model.random(&format!("{encoder}.{name}.bias"), &[width], 0.1);
    };
    norm(model, "post_ln");
    for layer in 0..n_layer {
        for (name, shape) in [
            ("attn_q", [width, width]),
            ("attn_k", [width, width]),
            ("attn_v", [width, width]),
            ("attn_out", [width, width]),
            ("ffn_up", [width, 2 * width]),
            ("ffn_down", [2 * width, width]),
        ] {
            model.random(&format!("{encoder}.blk.{layer}.{name}.weight"), &shape, 0.4);
            // Whisper's keys have none.
            if (encoder, name) != ("a", "attn_k") {
                model.random(&format!("{encoder}.blk.{layer}.{name}.bias"), &[shape[1]], 0.1);
            }
        }
        norm(model, &format!("blk.{layer}.ln1"));
        norm(model, &format!("blk.{layer}.ln2"));
    }
}

/// The settings of an encoder of sounds that is Whisper's, and its tensors before the layers.
fn whisper(model: &mut Writer, n_layer: u64) {
    const N_MEL: u64 = 8;
    model.entry("clip.has_audio_encoder", 7, |bytes| bytes.push(1));
    for (key, value) in [
        ("embedding_length", WIDTH),
        ("attention.head_count", 2),
        ("feed_forward_length", 2 * WIDTH),
        ("block_count", n_layer),
        ("projection_dim", N_EMBD),
        ("num_mel_bins", N_MEL),
        ("projector.stack_factor", STACK),
    ] {
        model.number(&format!("audio.{key}"), value);
    }
    model.float("audio.attention.layer_norm_epsilon", 1e-6);
    model.random("a.position_embd.weight", &[WIDTH, 1500], 0.3);
    model.random("a.conv1d.1.weight", &[3, N_MEL, WIDTH], 0.5);
    model.random("a.conv1d.1.bias", &[1, WIDTH], 0.1);
    model.random("a.conv1d.2.weight", &[3, WIDTH, WIDTH], 0.3);
    model.random("a.conv1d.2.bias", &[1, WIDTH], 0.1);
    layers(model, "a", n_layer, WIDTH);
}

fn of_sounds(projector: &str) -> Writer {
    let mut model = Writer::empty("clip");
    model.entry("general.architecture", 8, |bytes| put_string(bytes, "clip"));
    model.entry("clip.use_gelu", 7, |bytes| bytes.push(1));
    model.entry("clip.projector_type", 8, |bytes| put_string(bytes, projector));
    whisper(&mut model, 1);
    model
}

/// That of Ultravox: 25 causal rows for each half a minute of a sound.
pub fn ultravox() -> String {
    ultravox_of(N_EMBD)
}

/// The same with rows of `n_embd` numbers.
pub fn ultravox_of(n_embd: u64) -> String {
    let mut model = of_sounds("ultravox");
    model.ones("mm.a.norm_pre.weight", STACK * WIDTH);
    model.random("mm.a.mlp.1.weight", &[STACK * WIDTH, 4 * WIDTH], 0.1);
    model.ones("mm.a.norm_mid.weight", 2 * WIDTH);
    model.random("mm.a.mlp.2.weight", &[2 * WIDTH, n_embd], 0.3);
    model.write(&format!("projector-ultravox-{n_embd}"))
}

/// That of Voxtral, with a tag before each sound.
pub fn voxtral() -> String {
    let mut model = of_sounds("voxtral");
    model.random("mm.a.mlp.1.weight", &[STACK * WIDTH, WIDTH], 0.1);
    model.random("mm.a.mlp.2.weight", &[WIDTH, N_EMBD], 0.3);
    model.write("projector-voxtral")
}

/// An encoder of pictures as Gemma 3's, and one of sounds as Ultravox's.
pub fn pictures_and_sounds() -> String {
    let mut model = vision("gemma3", 2);
    model.rename("clip.projector_type", "clip.no_longer_used");
    model.entry("clip.vision.projector_type", 8, |bytes| put_string(bytes, "gemma3"));
    model.entry("clip.audio.projector_type", 8, |bytes| put_string(bytes, "ultravox"));
    model.random("mm.input_projection.weight", &[N_EMBD, WIDTH], 0.5);
    model.ones("mm.soft_emb_norm.weight", WIDTH);
    whisper(&mut model, 1);
    model.ones("mm.a.norm_pre.weight", STACK * WIDTH);
    model.random("mm.a.mlp.1.weight", &[STACK * WIDTH, 4 * WIDTH], 0.1);
    model.ones("mm.a.norm_mid.weight", 2 * WIDTH);
    model.random("mm.a.mlp.2.weight", &[2 * WIDTH, N_EMBD], 0.3);
    model.write("projector-pictures-and-sounds")
}

/// That of Gemma 3: one piece of 4 rows, which attend to each other, between tags in text.
pub fn gemma3() -> String {
    let mut model = vision("gemma3", 2);
    model.random("mm.input_projection.weight", &[N_EMBD, WIDTH], 0.5);
    model.ones("mm.soft_emb_norm.weight", WIDTH);
    model.write("projector-gemma3")
}

/// That of LFM2: causal rows, whose number depends on the size of the picture.
pub fn lfm2() -> String {
    lfm2_of(N_EMBD)
}

/// The same with rows of `n_embd` numbers.
pub fn lfm2_of(n_embd: u64) -> String {
    let mut model = vision("lfm2", 2);
    let merged = WIDTH * MERGE * MERGE;
    for (name, shape) in [("mm.1", [merged, WIDTH]), ("mm.2", [WIDTH, n_embd])] {
        model.random(&format!("{name}.weight"), &shape, 0.3);
        model.random(&format!("{name}.bias"), &[shape[1]], 0.1);
    }
    model.write(&format!("projector-lfm2-{n_embd}"))
}

/// As LFM2's, with layers of whole blocks of weights of a type.
pub fn wide(matrices: TensorType) -> String {
    const WIDE: u64 = 64;
    let mut model = vision_of("lfm2", 2, WIDE);
    model.matrices = matrices;
    for (name, shape) in [("mm.1", [WIDE * MERGE * MERGE, WIDE]), ("mm.2", [WIDE, N_EMBD])] {
        model.random(&format!("{name}.weight"), &shape, 0.2);
        model.random(&format!("{name}.bias"), &[shape[1]], 0.1);
    }
    model.write(&format!("projector-wide-{}", matrices as u32))
}

/// Tags that a vocabulary has to have for a projector of Idefics 3, as they stand there.
pub const TAGS_OF_IDEFICS3: [&str; 2] = ["<fake_token_around_image>", "<global-img>"];

/// That of Idefics 3 with rows of `n_embd` numbers: pieces of 4 rows of squares of a picture, and of the whole, between tags.
pub fn idefics3(n_embd: u64) -> String {
    let mut model = vision("idefics3", 2);
    model.number("vision.preproc_image_size", 2 * IMAGE);
    model.random("mm.model.fc.weight", &[WIDTH * MERGE * MERGE, n_embd], 0.3);
    model.write(&format!("projector-idefics3-{n_embd}"))
}

/// That of Qwen 2 VL (`2`), Qwen 2.5 VL (`2.5`) or Qwen 3 VL (`3`): causal rows whose positions are four numbers.
pub fn qwen(version: &str) -> String {
    const MERGED: u64 = WIDTH * MERGE * MERGE;
    let mut model = vision(&format!("qwen{version}vl_merger"), 2);
    model.number("vision.spatial_merge_size", MERGE);
    let mlp = |model: &mut Writer, names: [String; 2]| {
        for (name, shape) in names.iter().zip([[MERGED, MERGED], [MERGED, N_EMBD]]) {
            model.random(&format!("{name}.weight"), &shape, 0.3);
            model.random(&format!("{name}.bias"), &[shape[1]], 0.1);
        }
    };
    if version == "3" {
        for layer in 0..2 {
            let name = format!("v.blk.{layer}.attn_qkv");
            model.random(&format!("{name}.weight"), &[WIDTH, 3 * WIDTH], 0.4);
            model.random(&format!("{name}.bias"), &[3 * WIDTH], 0.1);
        }
        model.tensors.retain(|(name, ..)| !["attn_q.", "attn_k.", "attn_v."].iter().any(|part| name.contains(part)));
        // A second output for the first layer of the model.
        model.ones("v.deepstack.0.norm.weight", MERGED);
        model.random("v.deepstack.0.norm.bias", &[MERGED], 0.1);
        mlp(&mut model, ["v.deepstack.0.fc1".into(), "v.deepstack.0.fc2".into()]);
    } else {
        model.number("vision.n_wa_pattern", if version == "2" { 0 } else { 2 });
        model.tensors.retain(|(name, ..)| !["v.patch_embd.bias", "v.position_embd.weight"].contains(&name.as_str()));
    }
    model.random("v.patch_embd.weight.1", &[PATCH, PATCH, 3, WIDTH], 0.3);
    mlp(&mut model, ["mm.0".into(), "mm.2".into()]);
    model.write(&format!("projector-qwen{version}vl"))
}

/// One whose encoder has no heads.
pub fn without_heads() -> String {
    let mut model = vision("gemma3", 1);
    model.renumber("vision.attention.head_count", 0);
    model.write("projector-without-heads")
}
