//! Result files of earlier versions stay readable: each gives its table, and its plot where its
//! scenario has one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bench::record::{self, Record};
use bench::table;
use bench::views::VIEWS;
use serde_json::json;

#[test]
fn published_results_give_their_tables_and_plots() {
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("published.svg");
    let mut files = 0;
    for file in published() {
        let name = file.display();
        let records = record::read(&file).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(records[0].kind(), "header", "{name}");
        let measured: Vec<&Record> = records.iter().filter(|record| record.is_measurement()).collect();
        assert!(!measured.is_empty(), "{name}");
        for record in &measured {
            let views = VIEWS.iter().filter(|view| view.shows(record)).count();
            assert_eq!(views, 1, "{name}: {record:?}");
        }
        let text = table::render(&records);
        for view in VIEWS.iter().filter(|view| measured.iter().any(|record| view.shows(record))) {
            assert!(text.contains(view.title), "{name}: {text}");
            for record in measured.iter().filter(|record| view.shows(record)) {
                assert!(text.contains(&record.text(view.subject)), "{name}: {record:?}");
            }
            if !view.plotted.is_empty() {
                bench::plot::draw(&records, &picture).unwrap();
                let svg = fs::read_to_string(&picture).unwrap();
                assert!(view.plotted.iter().all(|figure| svg.contains(figure)), "{name}");
                assert!(measured.iter().all(|record| svg.contains(&record.text(view.subject))), "{name}");
                assert!(svg.contains("<circle"), "{name}");
            }
        }
        files += 1;
    }
    assert!(files > 30, "{files} files");
}

/// Figures that documents quote, by the files' own tables of then: medians, also of even numbers of rounds (listen); ratios
/// to the better baseline of a round, and to others where one was not measured (tcp); the floor, which spreads what happens
/// once over a connection's transactions; open loops apart from closed ones, with those that fell behind.
#[test]
fn published_medians_are_what_they_were() {
    for (file, row, figures) in [
        ("rpc/transactions", "1 megapipe-uring 8301 8192..8410 ", " 88856 1.41 2879 "),
        ("rpc/transactions", "1 epoll-shared 8896 8728..9082 1.001 1.000..1.021 ", ""),
        ("rpc/transactions", "1 tokio 9061 8981..10119 1.021 ", ""),
        ("rpc/transactions", "10 floor 2054 1997..2241 0.607 ", ""),
        ("rpc/transactions", "10 floor+entries 2217 2165..2410 0.657 ", " 1.080 "),
        ("rpc-epyc/latency", "128 closed epoll-shared 5946 5946..5946 1.172 ", ""),
        ("rpc-epyc/latency", "128 open epoll-shared 6793 6590..7867 1.020 1.000..1.041 ", " 6676 1.000 "),
        ("rpc-epyc/latency", "uring-plain: the server fell behind the schedule in 1 round(s), ", ""),
        ("rpc-epyc/latency", "epoll-reuseport: the client fell behind the schedule in 1 round(s), ", ""),
        ("promotion/pingpong", "8 promoted 187 159..210 ", " 360 840 261 "),
        ("promotion/stream", "64 unix 80.6 60.5..84.1 ", " 1259759 1547 "),
        ("promotion/stream", "64 promoted 2272.5 1551.6..2878.2 118 ", ""),
        ("apps/apps", "redis get 1 megapipe 813962 719473..862935 ", " 7.0 "),
        ("mmsg/receive", "1 stateful 2.027 ", " 697 677..736 0.729 "),
        ("tcp/all", "short stack 53284 ", " 18.28 "),
        ("tcp/all", "thousand stack 244057 1.836 4.00 0.537 ", ""),
        ("tcp/all", "two-short two-stacks 34386 1.021 23.65 1.084 ", ""),
        ("listen/short", "nginx reuseport 16496 0.980 ", " 3.50 7.66 7.48..7.82 47 0 0 "),
    ] {
        assert_shows(&kept(file), row, figures);
    }
}

fn kept(file: &str) -> Vec<Record> {
    record::read(&root().join(format!("bench-results/{file}.jsonl"))).unwrap()
}

fn assert_shows(records: &[Record], row: &str, figures: &str) {
    let text = table::render(records);
    let words = |line: &str| format!("{} ", line.split_whitespace().collect::<Vec<_>>().join(" "));
    let found = text.lines().map(words).any(|line| line.starts_with(row) && line.contains(figures));
    assert!(found, "{row}\n{text}");
}

/// Each round of a file that is joined from two is compared with that of its own run.
#[test]
fn joined_files_have_a_round_twice() {
    let mut records = kept("mmsg/receive");
    let slower = |record: &Record| {
        let ns = record.number("cpu_ns_per_packet")? * 2.0;
        Some(record.clone().with(json!({ "cpu_ns_per_packet": ns })))
    };
    records.extend(records.iter().filter_map(slower).collect::<Vec<_>>());
    assert_shows(&records, "1 stateful 2.027 ", " 677..1473 0.729 0.629..0.739 ");
}

#[test]
fn a_disturbed_run_says_so() {
    let waited = |share: f64| {
        let records = kept("rpc/transactions").into_iter();
        records.map(|one| one.with(json!({ "server_waited": share }))).collect::<Vec<_>>()
    };
    assert_shows(&waited(0.2), "Disturbed: something else had their CPUs 20% of the time", "");
    assert!(!table::render(&waited(0.02)).contains("Disturbed"));
}

#[test]
fn the_command_shows_the_records_of_a_run() {
    let bench = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe-bench"));
        command.arg("show").args(arguments).current_dir(root()).output().unwrap()
    };
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shown.svg");
    let output = bench(&["bench-results/promotion/stream.jsonl", "--plot", picture.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("memcpy") && text.contains("placement two-cores"), "{text}");
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(svg.contains("placement two-cores") && svg.contains("MB/s"), "{svg}");
    // A point for each row, below the title and the headings.
    assert_eq!(svg.matches("<circle").count(), text.trim().lines().count() - 2, "{svg}");
    for (arguments, words) in [
        (&["/nonexistent"][..], "name a file that --json wrote"),
        (&["Cargo.toml"], "line 1 is not a record"),
        (
            &["bench-results/tcp/all.jsonl", "--plot", "/nonexistent/plot.svg"],
            "nothing was measured that has a plot",
        ),
    ] {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8(output.stderr).unwrap().contains(words));
    }
}

#[test]
fn published_results_are_quoted_and_explained() {
    let mut documents = vec![root().join("README.md")];
    for folder in ["docs", "docs/adr"] {
        let entries = fs::read_dir(root().join(folder)).unwrap();
        documents.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()));
    }
    let documents: String = documents.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    for folder in topics() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        assert!(folder.join("README.md").is_file(), "bench-results/{name} has no README.md");
        let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '-');
        let quoted = documents.split(&format!("bench-results/{name}")).skip(1).any(ends);
        assert!(quoted, "no document quotes bench-results/{name}");
    }
}

fn published() -> Vec<PathBuf> {
    let files = topics().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|suffix| suffix == "jsonl")).collect()
}

/// Folders of results; beside them lies their index.
fn topics() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(root().join("bench-results")).unwrap();
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
