//! Names the shared library as programs ask for it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmegapipe_mtcp.so.0");
}
