//! Strings and numbers: what a Redis client sends and gets.

mod common;

use common::TestServer;

#[test]
fn set_and_get_with_all_options_answer_as_redis_does() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("GET k", "(nil)");
    client.expect("SET k 1", "OK");
    client.expect("GET k", "\"1\"");
    client.expect("SET k 2 NX", "(nil)");
    client.expect("SET k 2 XX", "OK");
    client.expect("SET new 2 XX", "(nil)");
    client.expect("SET k 3 GET", "\"2\"");
    client.expect("SET k 4 NX GET", "\"3\"");
    client.expect("GET k", "\"3\"");
    client.expect("SET fresh 1 NX GET", "(nil)");
    client.expect("SET k 5 EX 100", "OK");
    client.expect("TTL k", "(integer) 100");
    client.expect("SET k 6 KEEPTTL", "OK");
    client.expect("TTL k", "(integer) 100");
    client.expect("SET k 7", "OK");
    client.expect("TTL k", "(integer) -1");
    client.expect("SET k 8 PX 100000", "OK");
    client.expect("TTL k", "(integer) 100");
    client.expect("SET k 9 EXAT 32503680000", "OK");
    client.expect("SET k 9 PXAT 32503680000000", "OK");
    client.expect("SET gone 1 EXAT 1", "OK");
    client.expect("EXISTS gone", "(integer) 0");
    client.expect("SET k 1 NX XX", "(error) ERR syntax error");
    client.expect("SET k 1 EX", "(error) ERR syntax error");
    client.expect("SET k 1 EX 10 PX 10", "(error) ERR syntax error");
    client.expect("SET k 1 EX 0", "(error) ERR invalid expire time in 'set' command");
    client.expect("SET k 1 EX 9223372036854775807", "(error) ERR invalid expire time in 'set' command");
    client.expect("SET k 1 EX x", "(error) ERR value is not an integer or out of range");
    client.expect("GET k", "\"9\"");
}

#[test]
fn the_older_ways_to_set_work() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("SETNX k 1", "(integer) 1");
    client.expect("SETNX k 2", "(integer) 0");
    client.expect("GETSET k 3", "\"1\"");
    client.expect("SETEX k 100 4", "OK");
    client.expect("TTL k", "(integer) 100");
    client.expect("PSETEX k 100000 5", "OK");
    client.expect("GETDEL k", "\"5\"");
    client.expect("GETDEL k", "(nil)");
    client.expect("SETEX k 0 1", "(error) ERR invalid expire time in 'setex' command");
    client.expect("PSETEX k -1 1", "(error) ERR invalid expire time in 'psetex' command");
    client.expect("APPEND k ab", "(integer) 2");
    client.expect("APPEND k cd", "(integer) 4");
    client.expect("STRLEN k", "(integer) 4");
    client.expect("STRLEN none", "(integer) 0");
    client.expect("EXPIRE k 100", "(integer) 1");
    client.expect("APPEND k ef", "(integer) 6");
    client.expect("TTL k", "(integer) 100");
    client.expect("GETEX k PERSIST", "\"abcdef\"");
    client.expect("TTL k", "(integer) -1");
    client.expect("GETEX k EX 50", "\"abcdef\"");
    client.expect("TTL k", "(integer) 50");
    client.expect("GETEX k EXAT 1", "\"abcdef\"");
    client.expect("GETEX k", "(nil)");
    client.expect("GETEX k FOO", "(error) ERR syntax error");
}

#[test]
fn several_keys_are_set_and_read_together() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("MSET a 1 b 2 a 3", "OK");
    client.expect("MGET a b c a", r#"["3", "2", (nil), "3"]"#);
    client.expect("MSETNX b 5 c 6", "(integer) 0");
    client.expect("MGET b c", r#"["2", (nil)]"#);
    client.expect("MSETNX c 6 d 7", "(integer) 1");
    client.expect("MSET a", "(error) ERR wrong number of arguments for 'mset' command");
    client.expect("MSET a 1 b", "(error) ERR wrong number of arguments for 'mset' command");
    client.expect("EXISTS a b a none", "(integer) 3");
    client.expect("DEL a b none a", "(integer) 2");
    client.expect("UNLINK c d", "(integer) 2");
    client.expect("DBSIZE", "(integer) 0");
}

#[test]
fn integers_count_exactly_and_refuse_what_is_none() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("INCR n", "(integer) 1");
    client.expect("INCRBY n 41", "(integer) 42");
    client.expect("DECR n", "(integer) 41");
    client.expect("DECRBY n 50", "(integer) -9");
    client.expect("SET n 9223372036854775807", "OK");
    client.expect("INCR n", "(error) ERR increment or decrement would overflow");
    client.expect("GET n", "\"9223372036854775807\"");
    client.expect("DECRBY n -9223372036854775808", "(error) ERR decrement would overflow");
    for text in ["abc", "01", "+1", "1.0", "9223372036854775808"] {
        client.expect(&format!("SET n {text}"), "OK");
        client.expect("INCR n", "(error) ERR value is not an integer or out of range");
    }
    client.expect("SET n 5 EX 100", "OK");
    client.expect("INCR n", "(integer) 6");
    client.expect("TTL n", "(integer) 100");
}

#[test]
fn floats_are_added_and_printed_as_redis_prints_them() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("SET f 10.50", "OK");
    client.expect("INCRBYFLOAT f 0.1", "\"10.6\"");
    client.expect("INCRBYFLOAT f -5", "\"5.6\"");
    client.expect("SET f 5.0e3", "OK");
    client.expect("INCRBYFLOAT f 2.0e2", "\"5200\"");
    client.expect("GET f", "\"5200\"");
    client.expect("INCRBYFLOAT f abc", "(error) ERR value is not a valid float");
    client.expect("INCRBYFLOAT f inf", "(error) ERR increment would produce NaN or Infinity");
    client.expect("SET f text", "OK");
    client.expect("INCRBYFLOAT f 1", "(error) ERR value is not a valid float");
}

/// A number of so many digits that it took minutes to read occupied the thread meanwhile.
#[test]
fn a_number_longer_than_redis_reads_is_refused_as_an_argument_and_as_a_value() {
    let server = TestServer::start();
    let mut client = server.client();
    let (longest, too_long) = ("0".repeat(5_119), "0".repeat(5_120));
    client.expect(&format!("SET f {longest}"), "OK");
    client.expect(&format!("INCRBYFLOAT f {longest}"), "\"0\"");
    client.expect(&format!("INCRBYFLOAT f {too_long}"), "(error) ERR value is not a valid float");
    client.expect(&format!("SET f {too_long}"), "OK");
    client.expect("INCRBYFLOAT f 1", "(error) ERR value is not a valid float");
}

#[test]
fn parts_of_strings_are_read_and_overwritten_as_in_redis() {
    let server = TestServer::start();
    let mut client = server.client();
    client.expect("SET k Hello-World EX 100", "OK");
    for (range, part) in [
        ("0 4", "Hello"),
        ("-5 -1", "World"),
        ("0 -1", "Hello-World"),
        ("4 2", ""),
        ("20 30", ""),
        ("-99 0", "H"),
    ] {
        client.expect(&format!("GETRANGE k {range}"), &format!("\"{part}\""));
        client.expect(&format!("SUBSTR k {range}"), &format!("\"{part}\""));
    }
    client.expect("GETRANGE none 0 -1", "\"\"");
    client.expect("GETRANGE k x 1", "(error) ERR value is not an integer or out of range");
    client.expect("SETRANGE k 6 Redis", "(integer) 11");
    client.expect("GET k", "\"Hello-Redis\"");
    client.expect("TTL k", "(integer) 100");
    client.expect("SETRANGE k 12 !", "(integer) 13");
    client.expect("GET k", "\"Hello-Redis\0!\"");
    client.expect("SETRANGE new 2 x", "(integer) 3");
    client.expect("GET new", "\"\0\0x\"");
    client.send(&[b"SETRANGE", b"none", b"5", b""]);
    assert_eq!(client.reply(), "(integer) 0");
    client.expect("EXISTS none", "(integer) 0");
    client.expect("SETRANGE k -1 x", "(error) ERR offset is out of range");
    for offset in [16 << 20, i64::MAX] {
        let error = "(error) ERR string exceeds maximum allowed size (16777216 bytes)";
        client.expect(&format!("SETRANGE k {offset} x"), error);
    }
    client.expect("PERSIST k", "(integer) 1");
    client.expect("SETRANGE k 16777215 x", "(integer) 16777216");
}

#[test]
fn keys_and_values_are_any_bytes() {
    let server = TestServer::start();
    let mut client = server.client();
    let bytes: Vec<u8> = (0..=255).collect();
    client.send(&[b"SET", &bytes, &bytes]);
    assert_eq!(client.reply(), "OK");
    client.send(&[b"GET", &bytes]);
    let frame = client.frame().unwrap();
    assert_eq!(frame.as_bytes().unwrap().as_ref(), bytes.as_slice());
    client.send(&[b"SET", b"", b""]);
    assert_eq!(client.reply(), "OK");
    client.send(&[b"GET", b""]);
    assert_eq!(client.reply(), "\"\"");
}
