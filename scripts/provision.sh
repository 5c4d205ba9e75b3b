# shellcheck shell=bash
# Finds or gets what the scripts need on Debian or Ubuntu. Sourced; then `provide NEED...`:
#   build    a C compiler, the headers of libc, pkg-config, Rust
#   demo     servers and clients of scripts/demo.sh
#   test     servers and clients of the tests
#   checks   what else .ci/run needs
#   clients  servers, and clients in Python, Java (some 270 MB) and PHP, that `megapipe-bench apps` measures
# What is on the machine is used. Compilers and clients are installed: as root, with sudo at a terminal, else
# with `sudo -n`. Servers of tests are unpacked into target/tools instead: that needs no root,
# and starts and enables nothing. NO_INSTALL=1 only says what is missing. Messages go to stderr.

# The compiler that a manifest promises to be enough.
promised() { sed -n 's/^rust-version = "\([0-9.]*\)".*$/\1/p' "$1"; }

RUST_NEEDED=$(promised Cargo.toml)
CARGO=${CARGO:-cargo}
TOOLS=$(realpath -m "${CARGO_TARGET_DIR:-target}/tools")

# PROGRAM:PACKAGE
DEMO=(redis-server:redis-server redis-benchmark:redis-tools nginx:nginx wrk:wrk)
TEST=(memcached:memcached memcaslap:libmemcached-tools ab:apache2-utils)
CLIENTS=(redis memcached nginx wrk haproxy postgresql mariadb-server sysbench nodejs gunicorn python3-redis python3-psycopg2
    python3-grpcio default-jdk-headless libpostgresql-jdbc-java php-cli php-redis)
CHECKS=(c++:g++ python3:python3 valgrind:valgrind groff:groff-base shellcheck:shellcheck)

note() { printf '%s\n' "$*" >&2; }

has() { command -v "$1" >/dev/null; }

# Programs that are unpacked come last: what is installed wins. Many a user's PATH lacks the
# folders of servers, or that of a Rust installed a minute ago.
if [ -x "$HOME/.cargo/bin/cargo" ]; then
    PATH=$HOME/.cargo/bin:$PATH
fi
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$TOOLS/bin:$TOOLS/root/usr/bin:$TOOLS/root/usr/sbin

# The unpacked libraries are those that the machine lacks or has too old.
use_libraries() {
    local folder
    for folder in "$TOOLS"/root/usr/lib "$TOOLS"/root/usr/lib/*-linux-gnu "$TOOLS"/root/lib/*-linux-gnu; do
        case :${LD_LIBRARY_PATH:-}: in *":$folder:"*) continue ;; esac
        if compgen -G "$folder/*.so*" >/dev/null; then
            export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
        fi
    done
}
use_libraries

provide() {
    local need status=0
    for need in "$@"; do
        case $need in
        build) provide_build || status=1 ;;
        demo)
            unpack "${DEMO[@]}" || status=1
            provide_module redis python3-redis || status=1
            ;;
        test) unpack "${DEMO[@]}" "${TEST[@]}" || status=1 ;;
        checks) provide_checks || status=1 ;;
        clients) provide_packages "${CLIENTS[@]}" || status=1 ;;
        esac
    done
    return "$status"
}

provide_build() {
    local missing=() rust=()
    has cc || missing+=(gcc)
    if ! printf '#include <stdlib.h>\n' | cc -E - >/dev/null 2>&1; then
        missing+=(libc6-dev)
    fi
    has pkg-config || missing+=(pkg-config)
    if ! rust_is "$RUST_NEEDED"; then
        if has rustup && rustup show active-toolchain >/dev/null 2>&1; then
            note "missing: Rust $RUST_NEEDED; this is $(rust_version)"
            say_command rustup update stable
            return 1
        fi
        [ -n "${NO_INSTALL:-}" ] || read_lists || return
        read -ra rust <<<"$(rust_packages)"
        [ "${#rust[@]}" -gt 0 ] || note "missing: Rust $RUST_NEEDED"
    fi
    install_packages "${missing[@]}" "${rust[@]}" || {
        # Apt may refuse because of a Rust that is there, and too old.
        [ $? -ne 2 ] || [ "${#rust[@]}" -eq 0 ] || say_rust
        return 1
    }
    rust_is "$RUST_NEEDED" || finish_rust
}

# Modules of unpacked packages, for the programs that need them alone: a virtual environment has its own.
MODULES=$TOOLS/root/usr/lib/python3/dist-packages

# The interpreter that has a module of Python, under MODULES too; fails if none has. A version manager's
# shell script in its place would be what `megapipe run` is given.
python_with() {
    local name
    for name in python3 /usr/bin/python3; do
        PYTHONPATH=$MODULES "$name" -c "import sys, $1; print(sys.executable)" 2>/dev/null && return
    done
    return 1
}

# A module of Python, from a package that is unpacked.
provide_module() {
    python_with "$1" >/dev/null && return
    may_install "$2" && read_lists && unpack_package "$2" && use_libraries && python_with "$1" >/dev/null
}

provide_checks() {
    local pair missing=()
    for pair in "${CHECKS[@]}"; do
        has "${pair%:*}" || missing+=("${pair#*:}")
    done
    install_packages "${missing[@]}"
}

# Packages that are not installed are installed; none is a success.
provide_packages() {
    local package missing=()
    for package in "$@"; do
        is_installed "$package" || missing+=("$package")
    done
    install_packages "${missing[@]}"
}

rust_version() { "$CARGO" --version 2>/dev/null | sed 's/^cargo \([0-9.]*\).*/\1/'; }

rust_is() {
    local version
    version=$(rust_version)
    [ -n "$version" ] && printf '%s\n' "$1" "$version" | sort -V -C
}

# The packages that bring Rust: rustup, else the newest compiler of the distribution and its cargo,
# which are called rustc-web and cargo-web in Debian 12, and rustc-1.89 and so on in Ubuntu.
rust_packages() {
    local names
    has apt-cache || return
    if [ -z "${1:-}" ] && { has rustup || candidate rustup >/dev/null; }; then
        has rustup || printf 'rustup\n'
        return
    fi
    names=$(apt-cache pkgnames rustc | grep -E '^rustc(-web|-[0-9.]+)?$')
    # shellcheck disable=SC2086 # names of packages have no blanks
    LC_ALL=C apt-cache policy $names |
        awk '/^[^ ]/ { sub(/:$/, ""); name = $0 } /Candidate: [0-9]/ { print $2, name }' |
        sort -V | tail -n 1 | while read -r version name; do
            if printf '%s\n' "$RUST_NEEDED" "$version" | sort -V -C; then
                printf '%s cargo%s\n' "$name" "${name#rustc}"
            fi
        done
}

# Makes the Rust that was just installed the one that is used.
finish_rust() {
    local rust version
    [ -z "${NO_INSTALL:-}" ] || return
    if has rustup; then
        rustup default stable >&2 && rust_is "$RUST_NEEDED" && return
        # It needs more than the distribution's mirror.
        note 'rustup could not install a toolchain'
        read -ra rust <<<"$(rust_packages without-rustup)"
        if [ "${#rust[@]}" -gt 0 ] && is_installed rustup; then
            install_packages "${rust[@]}" rustup-
        fi
    fi
    version=$(compgen -c cargo-1. | sort -V | tail -n 1)
    if ! rust_is "$RUST_NEEDED" && [ -n "$version" ]; then
        mkdir -p "$TOOLS/bin"
        ln -sf "$(command -v "$version")" "$TOOLS/bin/cargo"
        ln -sf "$(command -v "${version/cargo/rustc}")" "$TOOLS/bin/rustc"
    fi
    rust_is "$RUST_NEEDED" && return
    say_rust
    return 1
}

say_rust() {
    note "these packages bring no Rust $RUST_NEEDED; https://rustup.rs does"
    say_command "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
}

is_installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

# The version of a package that apt would install; fails if it knows none.
candidate() { LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9].*\)/\1/p' | grep .; }

# Whether something may be done about what is missing.
may_install() {
    note "missing: $*"
    if ! has apt-get; then
        note 'this is not Debian or Ubuntu: install it by hand'
        return 1
    fi
    [ -z "${NO_INSTALL:-}" ]
}

say_command() { printf 'run this, then try again:\n\n    %s\n\n' "$*" >&2; }

# Runs apt-get as root: directly, or with sudo, which may ask for a password at a terminal.
# Fails with 126 if there is no way.
apt_as_root() {
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        if has sudo && [ -t 0 ] && [ -t 2 ]; then
            sudo=(sudo)
        elif has sudo && sudo -n true 2>/dev/null; then
            sudo=(sudo -n)
        else
            return 126
        fi
    fi
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" \
        >"$TOOLS/apt.log" 2>&1
}

# Fetches the lists of packages where there are none, as in images of containers.
read_lists() {
    compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null && return
    mkdir -p "$TOOLS"
    apt_as_root update && return
    say_command 'sudo apt-get update'
    return 1
}

# Installs packages; none is a success. Removes nothing, except what the caller names as PACKAGE-.
# Fails with 2 if apt did.
install_packages() {
    local command=(install -y --no-install-recommends) status=0
    [ $# -gt 0 ] || return 0
    may_install "$@" && read_lists || return
    case "$*" in *-) ;; *) command+=(--no-remove) ;; esac
    mkdir -p "$TOOLS"
    apt_as_root "${command[@]}" "$@" || status=$?
    if [ "$status" -eq 126 ]; then
        say_command "sudo apt-get install -y --no-install-recommends $*"
        return 1
    fi
    # Once more with new lists: old ones name files that mirrors no longer have.
    if [ "$status" -ne 0 ] && ! { apt_as_root update && apt_as_root "${command[@]}" "$@"; }; then
        tail -n 20 "$TOOLS/apt.log" >&2
        return 2
    fi
    note "installed: $*"
}

# Unpacks the packages of programs that are not there.
unpack() {
    local pair missing=() status=0
    for pair in "$@"; do
        has "${pair%:*}" || missing+=("${pair#*:}")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    may_install "${missing[@]}" && read_lists || return
    for pair in "${missing[@]}"; do
        unpack_package "$pair" || status=1
    done
    use_libraries
    return "$status"
}

# Unpacks a package, and the libraries that it needs and the machine lacks. Of its other
# dependencies only parts of the same program (nginx-common) have to do with running it.
unpack_package() {
    local package=$1 debs=$TOOLS/debs plan deb
    plan=$(LC_ALL=C apt-get -s --no-install-recommends install "$package" 2>&1) || {
        note "$package cannot be had: $(grep -m 1 '^E:' <<<"$plan")"
        return 1
    }
    plan=$(sed -nE "s/^Inst ((lib|${package%%-*})[^ ]*)( \[.*\])? \(([^ ]*) .*/\1=\4/p" <<<"$plan" |
        grep -v '^libc6=')
    rm -rf "$debs"
    mkdir -p "$debs" "$TOOLS/root"
    # shellcheck disable=SC2086 # names of packages have no blanks
    (cd "$debs" && apt-get -qq -o APT::Sandbox::User=root download $plan) >"$TOOLS/apt.log" 2>&1 || {
        note "$package cannot be downloaded: $(tail -n 1 "$TOOLS/apt.log")"
        return 1
    }
    for deb in "$debs"/*.deb; do
        dpkg-deb -x "$deb" "$TOOLS/root" || return
    done
    rm -rf "$debs"
    note "unpacked into ${TOOLS#"$PWD/"}: $package"
}
