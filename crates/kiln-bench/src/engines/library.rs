//! Libraries of the system, opened when they are first asked for.
//!
//! Peers that are written in C or C++ are not linked: building the bench needs none of their headers, and a machine that lacks
//! one can measure all others. An engine declares the functions that it uses with [`functions!`] in a module of its own, wraps
//! them safely there, and lists nothing anywhere else.
//!
//! A library is never closed: its threads and its statics live as long as the process.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;

use anyhow::{Context, Result, bail};

use super::OnRow;

/// Declares a struct of C functions and constants, and how they are found in a library by their names.
macro_rules! functions {
    (
        $file:literal, $what:literal,
        $(fn $function:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)+
        $(static $object:ident: $type:ty;)*
    ) => {
        /// The library's functions and objects, under its own names.
        #[allow(non_snake_case)]
        struct Functions {
            $($function: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
            $($object: *const $type,)*
        }

        // SAFETY: functions, and constants that nobody writes.
        unsafe impl Send for Functions {}
        // SAFETY: as above.
        unsafe impl Sync for Functions {}

        impl Functions {
            /// Opens the library, once.
            fn get() -> ::anyhow::Result<&'static Functions> {
                static FUNCTIONS: ::std::sync::OnceLock<
                    Result<Functions, $crate::engines::library::Unusable>,
                > = ::std::sync::OnceLock::new();
                FUNCTIONS
                    .get_or_init(|| {
                        let library = $crate::engines::library::open($file, $what)?;
                        // SAFETY: the types above are those of the library's header for the version that `$file` names.
                        unsafe {
                            use $crate::engines::library::symbol;
                            Ok(Functions {
                                $($function: symbol(library, stringify!($function), $what)?,)+
                                $($object: symbol(library, stringify!($object), $what)?,)*
                            })
                        }
                    })
                    .as_ref()
                    .map_err(|error| ::anyhow::Error::new(error.clone()))
            }
        }
    };
}
pub(super) use functions;

/// Declares types that a library only lets be pointed to.
macro_rules! opaque {
    ($($name:ident)+) => {
        $(#[repr(C)] struct $name([u8; 0]);)+
    };
}
pub(super) use opaque;

/// Why a library cannot be used.
#[derive(Clone, Debug)]
pub(super) enum Unusable {
    NotInstalled(String),
    /// It is another version than the one that is measured.
    Unknown(String),
}

impl fmt::Display for Unusable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Unusable::NotInstalled(what) | Unusable::Unknown(what)) = self;
        out.write_str(what)
    }
}

impl std::error::Error for Unusable {}

/// Opens a library by the name under which the dynamic linker knows it.
pub(super) fn open(file: &str, what: &str) -> Result<&'static libloading::Library, Unusable> {
    // SAFETY: what runs while it is opened are the initializers of a library that the system has installed.
    let library = unsafe { libloading::Library::new(file) };
    let library = library.map_err(|error| {
        Unusable::NotInstalled(format!(
            "{what} is not installed ({error}); run scripts/peers in Kiln's repository, which installs it"
        ))
    })?;
    Ok(Box::leak(Box::new(library)))
}

/// A function, or the address of an object, by its name.
///
/// # Safety
///
/// It must have the type `T` in the library.
pub(super) unsafe fn symbol<T: Copy>(
    library: &libloading::Library,
    name: &str,
    what: &str,
) -> Result<T, Unusable> {
    // SAFETY: the caller vouches for the type.
    let symbol = unsafe { library.get::<T>(name) };
    symbol.map(|symbol| *symbol).map_err(|error| {
        Unusable::Unknown(format!(
            "this {what} lacks {name} ({error}); remove it and run scripts/peers in Kiln's repository, which installs the \
             version that is measured"
        ))
    })
}

/// The version in the name of a library's file, for libraries that do not tell their own: what follows `prefix`, which a line of
/// the process's memory map has.
pub(super) fn version_of_mapped_file(prefix: &str) -> Result<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").context("cannot read /proc/self/maps")?;
    let version = maps.lines().find_map(|line| line.rsplit_once('/')?.1.strip_prefix(prefix));
    version.map(str::to_owned).with_context(|| format!("no file {prefix}* is in the process's memory"))
}

/// An object of a library, which is destroyed with its owner.
pub(super) struct Handle<T> {
    pointer: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Handle<T> {
    /// Owns what a library has made.
    ///
    /// # Safety
    ///
    /// `pointer` must be null, or `destroy` must be right for it and nobody else's task; and what the object itself uses must
    /// outlive the handle.
    pub(super) unsafe fn new(
        pointer: *mut T,
        destroy: unsafe extern "C" fn(*mut T),
        what: &str,
    ) -> Result<Handle<T>> {
        let pointer = NonNull::new(pointer)
            .with_context(|| format!("the library made no {what}; the memory of the machine may be short"))?;
        Ok(Handle { pointer, destroy })
    }

    /// The object, as C functions want it.
    #[inline]
    pub(super) fn pointer(&self) -> *mut T {
        self.pointer.as_ptr()
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: whoever made the handle said that this function is right, and that nobody else calls it.
        unsafe { (self.destroy)(self.pointer.as_ptr()) };
    }
}

/// Bytes that a library points to.
///
/// # Safety
///
/// `pointer` must be null or point to `length` bytes that stay as they are for `'a`.
#[inline]
pub(super) unsafe fn bytes<'a>(pointer: *const u8, length: usize) -> Result<&'a [u8]> {
    if isize::try_from(length).is_err() || pointer.is_null() && length > 0 {
        bail!("a library returned {length} bytes at {pointer:p}");
    }
    if pointer.is_null() {
        return Ok(&[]);
    }
    // SAFETY: neither null nor too long, as just checked; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// A text that a library points to.
///
/// # Safety
///
/// `pointer` must be null or point to a text that ends with a zero byte.
pub(super) unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// What the functions of LevelDB and RocksDB leave in their last argument: nothing, or a message that the caller frees.
///
/// # Safety
///
/// `message` must be null or a text that `free` frees.
#[inline]
pub(super) unsafe fn check(message: *mut c_char, free: unsafe extern "C" fn(*mut u8)) -> Result<()> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: not null, and the caller's promise.
    let text = unsafe { text(message) };
    // SAFETY: the caller's promise; it is not used any more.
    unsafe { free(message.cast()) };
    bail!("{text}")
}

/// The first rows of a scan that goes on for as long as it is told that more are wanted.
pub(super) fn first_rows(
    count: usize,
    mut row: impl FnMut(&[u8], &[u8]) -> Result<()>,
    scan: impl FnOnce(&mut OnRow<'_, bool>) -> Result<()>,
) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let mut left = count;
    scan(&mut |key, value| {
        row(key, value)?;
        left -= 1;
        Ok(left > 0)
    })
}

/// A path as C wants it.
pub(super) fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_encoded_bytes())
        .with_context(|| format!("the path {} has a zero byte; name another with --dir", path.display()))
}
