//! Tells the program which target it is built for, and compiles the peer FASTER, if it is wanted; its sources and libraries come from
//! `scripts/faster`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=KILN_BENCH_TARGET={}", std::env::var("TARGET").unwrap_or_default());
    #[cfg(feature = "faster")]
    faster();
}

#[cfg(feature = "faster")]
fn faster() {
    const GLUE: &str = "src/engines/faster";
    const UPSTREAM: &str = "src/engines/faster/upstream";
    println!("cargo:rerun-if-changed={GLUE}");
    assert!(
        std::path::Path::new(UPSTREAM).join("core/faster.h").exists(),
        "the feature `faster` needs FASTER's sources: run scripts/faster first, or build without the feature"
    );
    cc::Build::new()
        .cpp(true)
        .std("c++14")
        .flag("-fpermissive")
        // Its warnings are not ours to mend.
        .warnings(false)
        .flag("-w")
        // A peer is optimised whatever the profile, and has no debugging aids.
        .opt_level(3)
        .define("NDEBUG", None)
        .include(GLUE)
        .include(UPSTREAM)
        .file(format!("{GLUE}/store.cc"))
        .file(format!("{UPSTREAM}/core/address.cc"))
        .file(format!("{UPSTREAM}/core/lss_allocator.cc"))
        .file(format!("{UPSTREAM}/core/thread.cc"))
        .file(format!("{UPSTREAM}/environment/file_linux.cc"))
        .compile("kiln_faster");
    for library in ["stdc++fs", "uuid", "tbb", "aio"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}
