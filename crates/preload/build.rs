//! Compiles the functions of variable arguments.

fn main() {
    println!("cargo:rerun-if-changed=src/variadic.c");
    cc::Build::new()
        .file("src/variadic.c")
        .flag_if_supported("-fvisibility=hidden")
        .warnings_into_errors(true)
        .compile("megapipe_variadic");
}
