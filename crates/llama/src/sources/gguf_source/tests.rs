#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::os::fd::AsRawFd as _;

use super::*;

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/stories-draft.gguf");

/// A file in the temporary folder, removed at the end of the test.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str) -> TempFile {
        TempFile(std::env::temp_dir().join(format!("foredraft-requantized-{}-{name}.gguf", std::process::id())))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes a model with all its matrices in `format`, by ggml's functions.
fn written(from: &Path, format: sys::ggml_type, file_type: u32, to: &Path) {
    let (from, to) = (c_path(from).unwrap(), c_path(to).unwrap());
    // SAFETY: the strings are NUL-terminated, the tensors belong to `tensors`, which outlives every use, and the buffers have their sizes.
    unsafe {
        let mut tensors = std::ptr::null_mut();
        let file =
            sys::gguf_init_from_file(from.as_ptr(), sys::gguf_init_params { no_alloc: false, ctx: &raw mut tensors });
        assert!(!file.is_null());
        let out = sys::gguf_init_empty();
        sys::gguf_set_kv(out, file);
        sys::gguf_set_val_u32(out, c"general.file_type".as_ptr(), file_type);
        let mut kept = Vec::new();
        for index in 0..sys::gguf_get_n_tensors(file) {
            let name = sys::gguf_get_tensor_name(file, index);
            let tensor = sys::ggml_get_tensor(tensors, name);
            let (n, n_rows, width) = (sys::ggml_nelements(tensor), sys::ggml_nrows(tensor), (*tensor).ne[0]);
            let mut floats = vec![0_f32; usize::try_from(n).unwrap()];
            let mut made = vec![0_u8; sys::ggml_row_size(format, width) * usize::try_from(n_rows).unwrap()];
            sys::gguf_add_tensor(out, tensor);
            // Vectors are in F32.
            if let Some(to_float) = (*sys::ggml_get_type_traits((*tensor).type_)).to_float {
                to_float((*tensor).data, floats.as_mut_ptr(), n);
                let to = made.as_mut_ptr().cast();
                sys::ggml_quantize_chunk(format, floats.as_ptr(), to, 0, n_rows, width, std::ptr::null());
                sys::gguf_set_tensor_type(out, name, format);
                sys::gguf_set_tensor_data(out, name, made.as_ptr().cast());
                kept.push(made);
            }
        }
        assert!(sys::gguf_write_to_file(out, to.as_ptr(), false));
        sys::gguf_free(out);
        sys::gguf_free(file);
        sys::ggml_free(tensors);
    }
}

fn requantized(source: &GgufSource, weights: WeightType) -> GgufFile {
    let opened = GgufFile::open("model_draft", source, true, Role::Draft, &[]).unwrap();
    opened.with_weights(weights, "model_draft", source, &[]).unwrap()
}

fn all_bytes(file: &GgufFile) -> Vec<u8> {
    let stream = file.stream.as_ref().expect("it has other weights");
    let mut bytes = vec![0; usize::try_from(stream.len()).unwrap()];
    assert_eq!(stream.read_at(0, &mut bytes), bytes.len());
    bytes
}

#[test]
fn requantized_file_is_the_one_that_ggml_writes() {
    let files = ["f16", "f32", "made"].map(TempFile::new);
    let (shipped, [f16, f32, made]) = (Path::new(SHIPPED), files.each_ref().map(|file| file.0.as_path()));
    written(shipped, sys::GGML_TYPE_F16, 1, f16);
    written(shipped, sys::GGML_TYPE_F32, 0, f32);
    for (source, weights, file_type) in
        [(shipped, WeightType::Q4_0, 2), (f16, WeightType::Q4_0, 2), (f16, WeightType::Q8_0, 7)]
    {
        written(source, weights.format().unwrap(), file_type, made);
        let file = requantized(&source.into(), weights);
        assert_eq!((file.weights, file.can_map), (weights, false));
        assert!(all_bytes(&file) == std::fs::read(made).unwrap(), "{source:?} {weights:?}");
    }
    // The last one that was made is in Q8_0.
    for (source, weights) in
        [(shipped, WeightType::Q8_0), (made, WeightType::Q8_0), (f32, WeightType::Q4_0), (f16, WeightType::AsInFile)]
    {
        let file = requantized(&source.into(), weights);
        assert!(
            file.stream.is_none() && file.can_map && file.weights == WeightType::AsInFile,
            "{source:?} {weights:?}"
        );
    }
}

#[test]
fn requantized_file_is_the_same_from_every_source_and_in_every_part() {
    let expected = all_bytes(&requantized(&SHIPPED.into(), WeightType::Q4_0));
    let model = std::fs::read(SHIPPED).unwrap();
    let inside = TempFile::new("inside");
    std::fs::write(&inside.0, [&[7; 96], model.as_slice(), &[7; 50]].concat()).unwrap();
    let [file, whole] = [inside.0.as_path(), Path::new(SHIPPED)].map(|path| std::fs::File::open(path).unwrap());
    let length = model.len() as u64;
    for source in [
        GgufSource::Descriptor { fd: whole.as_raw_fd(), offset: 0, length: None },
        GgufSource::Descriptor { fd: file.as_raw_fd(), offset: 96, length: Some(length) },
        GgufSource::Memory { address: model.as_ptr() as u64, length },
    ] {
        let file = requantized(&source, WeightType::Q4_0);
        assert!(all_bytes(&file) == expected, "{source}");
        let stream = file.stream.as_ref().unwrap();
        let mut random = 1_u64;
        for _ in 0..50 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = usize::try_from(random >> 33).unwrap() % expected.len();
            let size = (usize::try_from(random >> 13 & 0x3fff).unwrap()).min(expected.len() - at);
            let mut part = vec![0; size];
            assert_eq!(stream.read_at(at as u64, &mut part), size);
            assert!(part == expected[at..at + size], "{size} bytes at {at}");
        }
    }
}
