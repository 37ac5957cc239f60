//! Loads the shared library and calls its `foredraft_*` functions as a host does.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use libloading::Library as File;
use serde_json::{Value, json};

use crate::c_functions::ENGINE_FUNCTIONS;
use crate::host;

/// An engine handle, as a host sees it.
pub type Handle = *mut c_void;
pub type UpdateCallback = unsafe extern "C" fn(u64, *mut c_void);
pub type LogitsCallback = unsafe extern "C" fn(u64, *mut f32, i32, *const i32, i32, *mut c_void);
pub type LogCallback = unsafe extern "C" fn(i32, *const c_char, *mut c_void);

/// The code that `foredraft_load` returns for an invalid handle.
pub const INVALID_ENGINE: i32 = 12;

/// A loaded copy of the library.
pub struct Library(File);

/// The library that cargo built, loaded once.
pub static LIBRARY: LazyLock<Library> = LazyLock::new(|| Library::open(&host::library_path().expect("the library")));

/// A lock for tests that decode, because concurrent engines on few cores wait for each other's spinning threads.
pub fn exclusive() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn drop_line(_level: i32, _text: *const c_char, _user: *mut c_void) {}

impl Library {
    pub fn open(path: &Path) -> Library {
        // SAFETY: loading the library runs no initializers.
        let library = Library(unsafe { File::new(path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display())));
        // The log is dropped because these tests provoke errors.
        library.set_log_callback(Some(drop_line), 0);
        library
    }

    /// A function of the library, as type `T`.
    pub fn function<T: Copy>(&self, name: &str) -> T {
        // SAFETY: all callers pass the type that the header declares.
        unsafe { *self.0.get::<T>(name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}")) }
    }

    pub fn new_handle(&self) -> Handle {
        self.function::<extern "C" fn() -> Handle>("foredraft_engine_new")()
    }

    pub fn free_handle(&self, handle: Handle) {
        self.function::<extern "C" fn(Handle)>("foredraft_engine_free")(handle);
    }

    pub fn load(&self, handle: Handle, config: &Value) -> i32 {
        let config = CString::new(config.to_string()).expect("no NUL");
        self.function::<extern "C" fn(Handle, *const c_char) -> i32>("foredraft_load")(handle, config.as_ptr())
    }

    /// The string is freed when this returns, which the API allows.
    pub fn load_async(&self, handle: Handle, config: &Value) {
        let config = CString::new(config.to_string()).expect("no NUL");
        self.function::<extern "C" fn(Handle, *const c_char)>("foredraft_load_async")(handle, config.as_ptr());
    }

    pub fn unload(&self, handle: Handle) {
        self.function::<extern "C" fn(Handle)>("foredraft_unload")(handle);
    }

    pub fn pause(&self, handle: Handle) -> i32 {
        self.function::<extern "C" fn(Handle) -> i32>("foredraft_pause")(handle)
    }

    pub fn resume(&self, handle: Handle) -> i32 {
        self.function::<extern "C" fn(Handle) -> i32>("foredraft_resume")(handle)
    }

    pub fn status(&self, handle: Handle) -> Value {
        self.taken(self.function::<extern "C" fn(Handle) -> *mut c_char>("foredraft_status")(handle))
    }

    pub fn set_log_callback(&self, callback: Option<LogCallback>, user: usize) {
        self.function::<extern "C" fn(Option<LogCallback>, *mut c_void)>("foredraft_set_log_callback")(
            callback,
            user as *mut c_void,
        );
    }

    pub fn set_update_callback(&self, handle: Handle, callback: Option<UpdateCallback>, user: usize) {
        self.function::<extern "C" fn(Handle, Option<UpdateCallback>, *mut c_void)>("foredraft_set_update_callback")(
            handle,
            callback,
            user as *mut c_void,
        );
    }

    pub fn set_logits_callback(&self, handle: Handle, callback: Option<LogitsCallback>, user: usize) {
        self.function::<extern "C" fn(Handle, Option<LogitsCallback>, *mut c_void)>("foredraft_set_logits_callback")(
            handle,
            callback,
            user as *mut c_void,
        );
    }

    /// Calls one of [`ENGINE_FUNCTIONS`], named without its prefix, with a document or NULL.
    pub fn call_text(&self, handle: Handle, name: &str, document: Option<&str>) -> Value {
        let name = format!("foredraft_{name}");
        assert!(ENGINE_FUNCTIONS.contains(&name.as_str()), "{name}");
        let document = document.map(|document| CString::new(document).expect("no NUL"));
        let document = document.as_ref().map_or(std::ptr::null(), |document| document.as_ptr());
        self.taken(self.function::<extern "C" fn(Handle, *const c_char) -> *mut c_char>(&name)(handle, document))
    }

    pub fn call(&self, handle: Handle, name: &str, request: &Value) -> Value {
        self.call_text(handle, name, Some(&request.to_string()))
    }

    fn taken(&self, answer: *mut c_char) -> Value {
        assert!(!answer.is_null());
        // SAFETY: returned by the library: NUL-terminated, and ours until it is freed.
        let value = serde_json::from_slice(unsafe { CStr::from_ptr(answer) }.to_bytes()).expect("JSON");
        self.function::<extern "C" fn(*mut c_char)>("foredraft_string_free")(answer);
        value
    }
}

/// An engine of [`LIBRARY`] or of another copy, freed on drop.
pub struct Engine<'a> {
    pub library: &'a Library,
    pub handle: Handle,
}

// SAFETY: a handle is a number that any thread may use.
unsafe impl Send for Engine<'_> {}
// SAFETY: as above.
unsafe impl Sync for Engine<'_> {}

impl<'a> Engine<'a> {
    pub fn of(library: &'a Library) -> Engine<'a> {
        let handle = library.new_handle();
        assert!(!handle.is_null());
        Engine { library, handle }
    }

    pub fn new() -> Engine<'static> {
        Engine::of(&LIBRARY)
    }

    /// An engine with a shipped model loaded, `target` or `draft`; `more` adds keys to the configuration.
    pub fn loaded(model: &str, more: Value) -> Engine<'static> {
        let engine = Engine::new();
        engine.load(model, more);
        engine
    }

    pub fn load(&self, model: &str, more: Value) {
        let config = config(model, more);
        assert_eq!(self.library.load(self.handle, &config), 0, "{config}: {}", self.status());
    }

    pub fn pause(&self) {
        assert_eq!(self.library.pause(self.handle), 0);
    }

    pub fn resume(&self) {
        assert_eq!(self.library.resume(self.handle), 0);
    }

    pub fn status(&self) -> Value {
        self.library.status(self.handle)
    }

    pub fn set_logits_callback(&self, callback: Option<LogitsCallback>, user: usize) {
        self.library.set_logits_callback(self.handle, callback, user);
    }

    pub fn call(&self, name: &str, request: &Value) -> Value {
        self.library.call(self.handle, name, request)
    }

    pub fn submit(&self, request: &Value) -> u64 {
        let answer = self.call("submit", request);
        answer["id"].as_u64().unwrap_or_else(|| panic!("{request}: {answer}"))
    }

    /// Waits until one of its slots generates.
    pub fn wait_until_generating(&self) {
        let generates = |status: &Value| {
            status["slots"].as_array().expect("slots").iter().any(|slot| slot["state"] == "generating")
        };
        while !generates(&self.status()) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Polls a request until it is finished. Returns its text and its last update.
    pub fn drain(&self, id: u64) -> (String, Value) {
        let (mut text, mut last) = (String::new(), Value::Null);
        loop {
            let answer = self.call("poll", &json!({"id": id, "timeout_ms": 60_000}));
            for update in answer["completion_updates"].as_array().unwrap_or_else(|| panic!("{answer}")) {
                text += update["content"].as_str().expect("content");
                last = update.clone();
            }
            if answer["finished"] == true {
                return (text, last);
            }
        }
    }
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        self.library.free_handle(self.handle);
    }
}

/// A configuration with a shipped model, on one thread because the model is too small for more.
pub fn config(model: &str, more: Value) -> Value {
    let path = host::root().join(format!("models/stories-{model}.gguf"));
    let mut config = json!({"model": path, "n_threads": 1, "n_ctx": 512, "log_level": "error"});
    config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    config
}

/// The key that adds the shipped draft model.
pub fn with_draft() -> Value {
    json!({"model_draft": host::root().join("models/stories-draft.gguf")})
}

/// A request that runs until it is cancelled.
pub fn endless() -> Value {
    json!({"prompt": "Once upon a time", "n_predict": -1, "ignore_eos": true})
}
