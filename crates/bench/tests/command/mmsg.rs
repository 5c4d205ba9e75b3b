//! `megapipe-bench mmsg`: real servers, and messages that really go.

use crate::support::{Files, of_kind, records, table};

#[test]
fn a_run_leaves_a_header_and_a_record_per_call_and_round() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIPPED a_run_leaves_a_header_and_a_record_per_call_and_round: it takes two CPUs");
        return;
    }
    let files = Files::new("mmsg");
    let what = "mmsg --sockets 32 --messages 20 --ready 1,20 --rounds 2 --traffic udp,tcp,udp-send";
    let table = table(&mut files.bench(what));
    let records = records(&files.json);
    assert_eq!(records[0]["scenario"], "mmsg");
    let measured = of_kind(&records, "measurement");
    // Five calls for datagrams, six for streams, three that send.
    assert_eq!(measured.len(), (5 + 6 + 3) * 2 * 2);
    for record in &measured {
        let packets = record["packets"].as_u64().unwrap();
        assert!(packets >= 32 * 20 && record["lost"] == 0, "{record}");
        assert!(record["cpu_ns_per_packet"].as_f64().unwrap() > 0.0, "{record}");
        let calls = record["receive_calls"].as_u64().unwrap();
        match record["call"].as_str().unwrap() {
            "recvmsg" | "recvmmsg" => assert_eq!(calls, packets, "{record}"),
            _ => assert!(calls > 0, "{record}"),
        }
    }
    for words in
        ["stateful", "aio", "lowat", "udp-send", "a receiver does not send", "the mark is for streams"]
    {
        assert!(table.contains(words), "{table}");
    }
    let svg = files.svg();
    assert!(svg.contains("udp-send"), "{svg}");
}
