//! The `redis` crate as a client: pipelines, transactions and RESP3 as programs use them.

mod common;

use common::TestServer;
use redis::{Commands as _, Connection, ProtocolVersion, RedisResult};

fn connect(server: &TestServer, protocol: ProtocolVersion) -> Connection {
    let suffix = if protocol == ProtocolVersion::RESP3 { "?protocol=resp3" } else { "" };
    let client = redis::Client::open(format!("redis://{}/{suffix}", server.address)).unwrap();
    client.get_connection().unwrap()
}

#[test]
fn commands_pipelines_and_transactions_work_in_both_protocols() {
    let server = TestServer::start();
    for protocol in [ProtocolVersion::RESP2, ProtocolVersion::RESP3] {
        let mut connection = connect(&server, protocol);
        let _: () = redis::cmd("FLUSHALL").query(&mut connection).unwrap();
        let _: () = connection.set("key", "value").unwrap();
        let value: Option<String> = connection.get("key").unwrap();
        assert_eq!(value.as_deref(), Some("value"));
        let missing: Option<String> = connection.get("missing").unwrap();
        assert_eq!(missing, None);
        let sum: i64 = connection.incr("n", 5).unwrap();
        assert_eq!(sum, 5);
        let (first, second): (i64, Vec<Option<String>>) =
            redis::pipe().incr("n", 1).cmd("MGET").arg("key").arg("missing").query(&mut connection).unwrap();
        assert_eq!((first, second), (6, vec![Some("value".to_owned()), None]));
        let (sum, gone): (i64, i64) =
            redis::pipe().atomic().incr("n", 10).del("key").query(&mut connection).unwrap();
        assert_eq!((sum, gone), (16, 1));
        let keys: Vec<String> = connection.scan::<String>().unwrap().collect::<RedisResult<_>>().unwrap();
        assert_eq!(keys, ["n"]);
        let info: redis::InfoDict = redis::cmd("INFO").query(&mut connection).unwrap();
        assert!(info.get::<u64>("horizon").is_some());
    }
}

#[test]
fn optimistic_transactions_of_the_client_library_count_exactly() {
    let server = TestServer::start();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut connection = connect(&server, ProtocolVersion::RESP2);
                for _ in 0..25 {
                    let _: (i64,) = redis::transaction(&mut connection, &["n"], |connection, pipe| {
                        let old: Option<i64> = connection.get("n")?;
                        pipe.set("n", old.unwrap_or(0) + 1).ignore().get("n").query(connection)
                    })
                    .unwrap();
                }
            });
        }
    });
    let mut connection = connect(&server, ProtocolVersion::RESP2);
    let total: i64 = connection.get("n").unwrap();
    assert_eq!(total, 100);
}
