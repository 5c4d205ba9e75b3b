#!/usr/bin/env bash
# Puts the program, the C libraries, the library of `megapipe run`, the man pages and the shell completions below DESTDIR and PREFIX, or takes them away.
# Usage: [PREFIX=/usr/local] [LIBDIR=PREFIX/lib] [DESTDIR=] scripts/install.sh install|uninstall
set -euo pipefail
CALLER=$PWD
cd "$(dirname "$0")/.."

PREFIX=${PREFIX:-/usr/local}
LIBDIR=${LIBDIR:-$PREFIX/lib}
DESTDIR=${DESTDIR:-}
BUILT=${CARGO_TARGET_DIR:-target}/release
VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
# Where systemd looks for units of packages and of what the administrator built (systemd.unit(5)).
UNITS=$PREFIX/lib/systemd/system

# Relative ones would end in megapipe.pc and mean another directory wherever that is read.
for name in PREFIX LIBDIR DESTDIR; do
    if [[ -n ${!name} && ${!name} != /* ]]; then
        printf '%s: %s=%s is relative; give an absolute path, such as %s=%s\n' \
            "$0" "$name" "${!name}" "$name" "$CALLER/${!name}" >&2
        exit 2
    fi
done

# The directories that were made, outermost first; kept for uninstall, which removes those that are empty then.
LIST=$PREFIX/share/megapipe/directories
MADE=()

make_directory() {
    if [ "$1" = / ]; then
        # DESTDIR itself is the caller's, and stays.
        mkdir -p "$DESTDIR/"
    elif [ ! -d "$DESTDIR$1" ]; then
        make_directory "$(dirname "$1")"
        install -d -m 755 "$DESTDIR$1"
        MADE+=("$1")
    fi
}

put() {
    local mode=$1 from=$2 to=$DESTDIR$3
    make_directory "$(dirname "$3")"
    # By rename: a program that starts meanwhile loads the library whole, the old one or the new.
    install -m "$mode" "$from" "$to.new"
    mv -fT "$to.new" "$to"
    printf 'installed %s\n' "$to"
}

link() {
    ln -sf "$1" "$DESTDIR$2"
    printf 'installed %s\n' "$DESTDIR$2"
}

install_all() {
    local built
    for built in megapipe libmegapipe{.so,_c.a,_preload.so,_mtcp.so,_mtcp.a}; do
        if [ ! -f "$BUILT/$built" ]; then
            printf '%s: %s is not there; run this first: make product\n' "$0" "$BUILT/$built" >&2
            exit 1
        fi
    done
    put 755 "$BUILT/megapipe" "$PREFIX/bin/megapipe"

    local documents
    documents=$(mktemp -d)
    # shellcheck disable=SC2064 # the directory of now, not of later
    trap "rm -rf '$documents'" EXIT
    "$BUILT/megapipe" generate-docs "$documents"
    local page
    for page in "$documents"/man/*.1; do
        put 644 "$page" "$PREFIX/share/man/man1/${page##*/}"
    done
    put 644 "$documents/completions/megapipe.bash" "$PREFIX/share/bash-completion/completions/megapipe"
    put 644 "$documents/completions/_megapipe" "$PREFIX/share/zsh/site-functions/_megapipe"
    put 644 "$documents/completions/megapipe.fish" "$PREFIX/share/fish/vendor_completions.d/megapipe.fish"

    local unit filled
    filled=$(mktemp)
    for unit in megapipe-monitor.service megapipe-monitor.socket; do
        sed "s|@PREFIX@|$PREFIX|g" "packaging/systemd/$unit" >"$filled"
        put 644 "$filled" "$UNITS/$unit"
    done
    rm -f "$filled"

    install_library
    keep_list
}

keep_list() {
    make_directory "${LIST%/*}"
    if [ "${#MADE[@]}" -gt 0 ]; then
        printf '%s\n' "${MADE[@]}" >>"$DESTDIR$LIST"
    fi
}

install_library() {
    put_library libmegapipe capi libmegapipe.so libmegapipe_c.a megapipe.pc
    put_library libmegapipe_mtcp mtcp libmegapipe_mtcp.so libmegapipe_mtcp.a megapipe-mtcp.pc
    # Out of the linker's way: it is for `megapipe run` alone.
    put 755 "$BUILT/libmegapipe_preload.so" "$LIBDIR/megapipe/libmegapipe_preload.so"
}

# Both forms of a C library, with the headers, the description and the man pages of its crate.
put_library() {
    local name=$1 crate=crates/$2 shared=$3 static=$4 description=$5
    local header
    for header in "$crate"/include/*.h; do
        put 644 "$header" "$PREFIX/include/${header##*/}"
    done
    put 755 "$BUILT/$shared" "$LIBDIR/$name.so.$VERSION"
    link "$name.so.$VERSION" "$LIBDIR/$name.so.0"
    link "$name.so.0" "$LIBDIR/$name.so"
    put 644 "$BUILT/$static" "$LIBDIR/$name.a"

    local filled
    filled=$(mktemp)
    sed -e "s|@PREFIX@|$PREFIX|g" -e "s|@LIBDIR@|$LIBDIR|g" -e "s|@VERSION@|$VERSION|g" \
        "$crate/$description.in" >"$filled"
    put 644 "$filled" "$LIBDIR/pkgconfig/$description"
    rm -f "$filled"

    local page
    for page in "$crate"/man/*.[37]; do
        put 644 "$page" "$PREFIX/share/man/man${page##*.}/${page##*/}"
    done
}

uninstall_all() {
    shopt -s nullglob
    local path
    for path in "$DESTDIR$PREFIX/bin/megapipe" \
        "$DESTDIR$PREFIX"/share/man/man1/megapipe{,-*}.1 \
        "$DESTDIR$PREFIX"/share/man/man[37]/{mp_*,megapipe*,recvmmmsg*,sendmmmsg*}.[37] \
        "$DESTDIR$PREFIX/share/bash-completion/completions/megapipe" \
        "$DESTDIR$PREFIX/share/zsh/site-functions/_megapipe" \
        "$DESTDIR$PREFIX/share/fish/vendor_completions.d/megapipe.fish" \
        "$DESTDIR$UNITS"/megapipe-monitor.{service,socket} \
        "$DESTDIR$PREFIX"/include/{megapipe{,_mmsg},mtcp_{api,epoll,device}}.h \
        "$DESTDIR$LIBDIR"/libmegapipe{,_mtcp}.{a,so} "$DESTDIR$LIBDIR"/libmegapipe{,_mtcp}.so.* \
        "$DESTDIR$LIBDIR/megapipe/libmegapipe_preload.so" \
        "$DESTDIR$LIBDIR"/pkgconfig/megapipe{,-mtcp}.pc; do
        if [ -e "$path" ] || [ -L "$path" ]; then
            rm -f "$path"
            printf 'removed %s\n' "$path"
        fi
    done
    remove_directories
}

remove_directories() {
    local made=() at
    if [ -f "$DESTDIR$LIST" ]; then
        mapfile -t made <"$DESTDIR$LIST"
        rm -f "$DESTDIR$LIST"
    fi
    # What others have put there stays: rmdir removes nothing that is not empty.
    for ((at = ${#made[@]} - 1; at >= 0; at--)); do
        if rmdir "$DESTDIR${made[at]}" 2>/dev/null; then
            printf 'removed %s\n' "$DESTDIR${made[at]}"
        fi
    done
}

case ${1:-} in
install)
    install_all
    # The loader keeps a list of libraries; a package (DESTDIR) does this when it is installed.
    if [ -z "$DESTDIR" ] && [ "$(id -u)" -eq 0 ]; then
        ldconfig
    fi
    ;;
uninstall) uninstall_all ;;
*)
    printf 'usage: %s install|uninstall\n' "$0" >&2
    exit 2
    ;;
esac
