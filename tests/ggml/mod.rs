//! ggml by itself: tensors that are computed on CPUs, for the tests of what replaces its functions.

use llama_cpp_sys_2 as sys;

/// Numbers between -1 and 1, the same for the same seed.
pub fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// The bytes of numbers.
pub fn bytes<T: Copy>(values: &[T]) -> Vec<u8> {
    // SAFETY: any memory is bytes, and the slice covers the array.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }.to_vec()
}

/// A tensor of a graph, and what it contains; of a result nothing.
pub type Tensor = *mut sys::ggml_tensor;

/// Computes on the CPU with `n_threads`. `build` makes tensors in a context, and returns the inputs with their contents, and the result.
#[allow(dead_code, reason = "not all tests use it")]
pub fn compute(
    n_threads: i32,
    build: impl FnOnce(*mut sys::ggml_context) -> (Vec<(Tensor, Vec<u8>)>, Tensor),
) -> Vec<f32> {
    compute_in(None, n_threads, build)
}

/// The first of ggml's extra types of buffers for CPUs, if there is any.
#[allow(dead_code, reason = "not all tests use it")]
pub fn extra_buffers() -> Option<sys::ggml_backend_buffer_type_t> {
    // SAFETY: ggml has a CPU device, whose registry has this function; the list that it returns is never freed and ends with NULL.
    unsafe {
        let device = sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU);
        let registry = sys::ggml_backend_dev_backend_reg(device);
        let list = sys::ggml_backend_reg_get_proc_address(registry, c"ggml_backend_dev_get_extra_bufts".as_ptr());
        type List = unsafe extern "C" fn(sys::ggml_backend_dev_t) -> *const sys::ggml_backend_buffer_type_t;
        let list: List = std::mem::transmute(list);
        let first = *list(device);
        (!first.is_null()).then_some(first)
    }
}

/// As [`compute`], with the first input in another type of buffers, from which its contents are read back.
pub fn compute_in(
    buffers: Option<sys::ggml_backend_buffer_type_t>,
    n_threads: i32,
    build: impl FnOnce(*mut sys::ggml_context) -> (Vec<(Tensor, Vec<u8>)>, Tensor),
) -> Vec<f32> {
    // SAFETY: ggml's objects are freed at the end, in the order in which they use each other; contents have the size of their tensors, which
    // is asserted; the graph is computed by the CPU's backend, which ggml has.
    unsafe {
        let ctx = sys::ggml_init(sys::ggml_init_params {
            mem_size: 1 << 20,
            mem_buffer: std::ptr::null_mut(),
            no_alloc: true,
        });
        let (inputs, out) = build(ctx);
        let graph = sys::ggml_new_graph(ctx);
        sys::ggml_build_forward_expand(graph, out);
        let backend = sys::ggml_backend_init_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU, std::ptr::null());
        let registry = sys::ggml_backend_dev_backend_reg(sys::ggml_backend_get_device(backend));
        let set = sys::ggml_backend_reg_get_proc_address(registry, c"ggml_backend_set_n_threads".as_ptr());
        let set: unsafe extern "C" fn(sys::ggml_backend_t, i32) = std::mem::transmute(set);
        set(backend, n_threads);
        let of_first = buffers.map(|buffers| {
            let first = inputs[0].0;
            let buffer =
                sys::ggml_backend_buft_alloc_buffer(buffers, sys::ggml_backend_buft_get_alloc_size(buffers, first));
            let status = sys::ggml_backend_tensor_alloc(buffer, first, sys::ggml_backend_buffer_get_base(buffer));
            assert_eq!(status, sys::GGML_STATUS_SUCCESS);
            buffer
        });
        let buffer = sys::ggml_backend_alloc_ctx_tensors(ctx, backend);
        for (tensor, contents) in &inputs {
            assert_eq!(sys::ggml_nbytes(*tensor), contents.len());
            sys::ggml_backend_tensor_set(*tensor, contents.as_ptr().cast(), 0, contents.len());
            let mut again = vec![0_u8; contents.len()];
            sys::ggml_backend_tensor_get(*tensor, again.as_mut_ptr().cast(), 0, again.len());
            assert!(again == *contents, "what is read back");
        }
        assert_eq!(sys::ggml_backend_graph_compute(backend, graph), sys::GGML_STATUS_SUCCESS);
        let mut result = vec![0.0_f32; sys::ggml_nbytes(out) / size_of::<f32>()];
        sys::ggml_backend_tensor_get(out, result.as_mut_ptr().cast(), 0, size_of_val(&*result));
        sys::ggml_backend_buffer_free(buffer);
        if let Some(buffer) = of_first {
            sys::ggml_backend_buffer_free(buffer);
        }
        sys::ggml_backend_free(backend);
        sys::ggml_free(ctx);
        result
    }
}
