//! TPC-C's Payment and New-Order (clauses 2.5 and 2.4), on one ordered table.
//!
//! Rows have the standard's sizes and numbers (3,000 customers in each of 10 districts, 100,000 items in stock) and are binary: a
//! few counters at the front, filler behind them. Left out: customers are found by number and never by name, there are no orders
//! before the first, and terminals do not think or type. 1% of New-Orders is taken back, 1% of the lines come from another
//! warehouse, and 15% of Payments are for its customers, as the standard wants where there is another warehouse.
//!
//! ```text
//!  key = kind (1 byte) | warehouse (2) | district (1) | number (4) | line (1), big endian, as many as the kind has
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::engines::{Access, Engine, Worker};
use crate::generate::{Entry, Key, add_to_first_word};
use crate::interrupt;
use crate::measure::{self, Meanwhile, Measured};

const DISTRICTS: u8 = 10;
const CUSTOMERS: u32 = 3000;
const ITEMS: u32 = 100_000;
/// The number of a district's first order.
const FIRST_ORDER: u64 = 3001;
/// Rows of a transaction while the tables are loaded.
const LOAD_ROWS: usize = 500;
/// Bytes of one warehouse's rows, about.
pub(crate) const WAREHOUSE_BYTES: u64 = 52 << 20;
/// Rows of one warehouse, its stock of each item among them.
const WAREHOUSE_ROWS: u64 = 1 + DISTRICTS as u64 * (1 + CUSTOMERS as u64) + ITEMS as u64;

/// Rows that are loaded for so many warehouses.
pub(crate) fn rows(warehouses: u16) -> u64 {
    u64::from(ITEMS) + u64::from(warehouses) * WAREHOUSE_ROWS
}

/// Which transactions are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Half and half.
    Both,
    Payment,
    NewOrder,
}

/// The kinds of rows, with their sizes by clause 1.2.
#[derive(Clone, Copy)]
enum Row {
    /// Year-to-date amount.
    Warehouse,
    /// Number of the next order; year-to-date amount.
    District,
    /// Balance; year-to-date payment; count of payments.
    Customer,
    /// Price.
    Item,
    /// Quantity; year-to-date; count of orders; count of orders from elsewhere.
    Stock,
    Order,
    NewOrder,
    OrderLine,
    History,
}

impl Row {
    fn bytes(self) -> usize {
        match self {
            Row::Warehouse => 89,
            Row::District => 95,
            Row::Customer => 655,
            Row::Item => 82,
            Row::Stock => 306,
            Row::Order => 24,
            Row::NewOrder => 8,
            Row::OrderLine => 54,
            Row::History => 46,
        }
    }

    fn key(self, warehouse: u16, district: u8, number: u32, line: u8) -> Key {
        let [w0, w1] = warehouse.to_be_bytes();
        let [n0, n1, n2, n3] = number.to_be_bytes();
        match self {
            Row::Warehouse => Key::new(&[self as u8, w0, w1]),
            Row::District => Key::new(&[self as u8, w0, w1, district]),
            Row::Item => Key::new(&[self as u8, n0, n1, n2, n3]),
            Row::Stock => Key::new(&[self as u8, w0, w1, n0, n1, n2, n3]),
            Row::OrderLine => Key::new(&[self as u8, w0, w1, district, n0, n1, n2, n3, line]),
            _ => Key::new(&[self as u8, w0, w1, district, n0, n1, n2, n3]),
        }
    }

    /// A new row with these counters at its front.
    fn value(self, counters: &[u64]) -> Vec<u8> {
        let mut value: Vec<u8> = counters.iter().flat_map(|counter| counter.to_le_bytes()).collect();
        value.resize(self.bytes(), b'.');
        value
    }
}

/// The counter with this number.
fn counter(value: &[u8], number: usize) -> Result<u64> {
    let bytes = value.get(8 * number..).and_then(<[u8]>::first_chunk).context("a row is too short")?;
    Ok(u64::from_le_bytes(*bytes))
}

fn add(value: &mut [u8], number: usize, delta: u64) -> Result<()> {
    add_to_first_word(value.get_mut(8 * number..).unwrap_or_default(), delta)
}

/// Reads a row, which must be there and have its size.
fn read(access: &mut dyn Access, row: Row, key: &Key, value: &mut Vec<u8>) -> Result<()> {
    ensure!(access.get(key, value)?, "a row of TPC-C is missing");
    ensure!(
        value.len() == row.bytes(),
        "a row of TPC-C has {} bytes instead of {}",
        value.len(),
        row.bytes()
    );
    Ok(())
}

/// The loaded tables, and how many orders they must have.
pub(crate) struct Tpcc<'e, E> {
    engine: &'e E,
    warehouses: u16,
    orders: AtomicU64,
    /// Lines of these orders.
    lines: AtomicU64,
    /// How many clients there were: each is another one.
    terminals: AtomicU64,
    /// Counts up, so that each payment's history row has a key of its own.
    payments: AtomicU64,
}

impl<'e, E: Engine> Tpcc<'e, E> {
    /// Tables that nothing was loaded into yet.
    pub(crate) fn new(engine: &'e E, warehouses: u16) -> Tpcc<'e, E> {
        let [orders, lines, terminals, payments] = [const { AtomicU64::new(0) }; 4];
        Tpcc { engine, warehouses, orders, lines, terminals, payments }
    }

    /// Writes all rows and makes them durable.
    pub(crate) fn load(&self) -> Result<()> {
        let mut worker = self.engine.worker()?;
        let items = (0..ITEMS)
            .map(|item| (Row::Item, Row::Item.key(0, 0, item, 0), vec![100 + u64::from(item) % 9900]));
        let rows = items.chain((0..self.warehouses).flat_map(warehouse_rows));
        let mut entries = Vec::new();
        for (row, key, counters) in rows {
            entries.push(Entry { key, value: row.value(&counters) });
            if entries.len() == LOAD_ROWS {
                interrupt::check()?;
                worker.put_all(&entries)?;
                entries.clear();
            }
        }
        worker.put_all(&entries)?;
        self.engine.persist()
    }

    /// Repeats transactions on `threads` threads for `duration`.
    pub(crate) fn run(&self, mix: Mix, threads: usize, duration: Duration) -> Result<Measured> {
        let (progress, hardenings) = (|| self.engine.progress(), || self.engine.hardenings());
        let meanwhile =
            Meanwhile { progress: &progress, hardenings: &hardenings, ..Meanwhile::nothing(duration) };
        measure::repeat(threads, &meanwhile, |thread| {
            let mut terminal = Terminal {
                worker: self.engine.worker()?,
                warehouses: self.warehouses,
                home: (thread % usize::from(self.warehouses)) as u16,
                random: SmallRng::seed_from_u64(self.terminals.fetch_add(1, Ordering::Relaxed)),
                value: Vec::new(),
            };
            Ok(move || {
                let pays = mix == Mix::Payment || mix == Mix::Both && terminal.random.random();
                if pays {
                    terminal.payment(self.payments.fetch_add(1, Ordering::Relaxed))?;
                } else if let Some(lines) = terminal.new_order()? {
                    self.orders.fetch_add(1, Ordering::Relaxed);
                    self.lines.fetch_add(lines, Ordering::Relaxed);
                }
                Ok(1)
            })
        })
    }

    /// Checks consistency condition 1 (clause 3.3.2.1): a warehouse's amount is the sum of its districts'; that there are as
    /// many orders as were made; and conditions 2 to 4 of some orders of each district.
    pub(crate) fn check(&self) -> Result<()> {
        let (mut worker, mut value) = (self.engine.worker()?, Vec::new());
        let mut orders = 0;
        for warehouse in 0..self.warehouses {
            let mut sum: u64 = 0;
            for district in 0..DISTRICTS {
                let found = worker.get(&Row::District.key(warehouse, district, 0, 0), &mut value)?;
                ensure!(found, "a district is missing");
                let next = counter(&value, 0)?;
                sum += counter(&value, 1)?;
                orders += next - FIRST_ORDER;
                check_orders(&mut worker, (warehouse, district), next)?;
            }
            ensure!(
                worker.get(&Row::Warehouse.key(warehouse, 0, 0, 0), &mut value)?,
                "a warehouse is missing"
            );
            let amount = counter(&value, 0)?;
            ensure!(amount == sum, "warehouse {warehouse} has {amount}, and its districts have {sum}");
        }
        let made = self.orders.load(Ordering::Relaxed);
        ensure!(orders == made, "{made} orders were made, and the districts count {orders}");
        Ok(())
    }

    /// Checks that there are as many rows as were written, none more and none less: conditions 2 to 4 of all orders together.
    pub(crate) fn check_count(&self) -> Result<()> {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let loaded = rows(self.warehouses);
        let expected = loaded + of(&self.payments) + 2 * of(&self.orders) + of(&self.lines);
        let count = self.engine.key_count()?;
        ensure!(count == expected, "{expected} rows of TPC-C should be there and {count} are");
        Ok(())
    }
}

/// Checks consistency conditions 2 to 4 (clauses 3.3.2.2 to 3.3.2.4) of the latest orders of a district whose next one has this number: each has a row, one
/// among the new orders, and as many lines as it says, and the next one has none.
fn check_orders(worker: &mut impl Worker, (warehouse, district): (u16, u8), next: u64) -> Result<()> {
    const CHECKED: u64 = 20;
    let mut value = Vec::new();
    for order in next.saturating_sub(CHECKED).max(FIRST_ORDER)..=next {
        let is_made = order < next;
        let number = order as u32;
        let mut has = |row: Row, line: u8, value: &mut Vec<u8>| {
            worker.get(&row.key(warehouse, district, number, line), value)
        };
        ensure!(
            has(Row::NewOrder, 0, &mut value)? == is_made && has(Row::Order, 0, &mut value)? == is_made,
            "order {order} of district {district} of warehouse {warehouse} is not what its district says"
        );
        let lines = if is_made { counter(&value, 1)? } else { 0 };
        for line in 0..=lines {
            let is_there = has(Row::OrderLine, line as u8, &mut value)?;
            ensure!(is_there == (line < lines), "order {order} has not the {lines} lines that it says");
        }
    }
    Ok(())
}

fn warehouse_rows(warehouse: u16) -> impl Iterator<Item = (Row, Key, Vec<u64>)> {
    let districts = (0..DISTRICTS).flat_map(move |district| {
        let customers = (0..CUSTOMERS).map(move |customer| {
            (Row::Customer, Row::Customer.key(warehouse, district, customer, 0), vec![0, 0, 0])
        });
        let key = Row::District.key(warehouse, district, 0, 0);
        customers.chain([(Row::District, key, vec![FIRST_ORDER, 0])])
    });
    let stock =
        (0..ITEMS).map(move |item| (Row::Stock, Row::Stock.key(warehouse, 0, item, 0), vec![100, 0, 0, 0]));
    districts.chain(stock).chain([(Row::Warehouse, Row::Warehouse.key(warehouse, 0, 0, 0), vec![0])])
}

/// A line of an order.
struct Line {
    item: u32,
    supplier: u16,
    quantity: u64,
}

/// One client, at home in a warehouse.
struct Terminal<W> {
    worker: W,
    warehouses: u16,
    home: u16,
    random: SmallRng,
    value: Vec<u8>,
}

impl<W: Worker> Terminal<W> {
    /// A warehouse that is another one than home in `percent` of all cases, if there is another.
    fn warehouse(&mut self, percent: u32) -> u16 {
        if self.warehouses == 1 || self.random.random_range(0..100) >= percent {
            return self.home;
        }
        let other = self.random.random_range(0..self.warehouses - 1);
        if other >= self.home { other + 1 } else { other }
    }

    fn payment(&mut self, number: u64) -> Result<()> {
        let (home, district) = (self.home, self.random.random_range(0..DISTRICTS));
        let customer_warehouse = self.warehouse(15);
        let customer_district =
            if customer_warehouse == home { district } else { self.random.random_range(0..DISTRICTS) };
        let customer = self.random.random_range(0..CUSTOMERS);
        let amount = self.random.random_range(100..500_000_u64);
        let value = &mut self.value;
        self.worker.transact(&mut |access| {
            let key = Row::Warehouse.key(home, 0, 0, 0);
            read(access, Row::Warehouse, &key, value)?;
            add(value, 0, amount)?;
            access.put(&key, value)?;
            let key = Row::District.key(home, district, 0, 0);
            read(access, Row::District, &key, value)?;
            add(value, 1, amount)?;
            access.put(&key, value)?;
            let key = Row::Customer.key(customer_warehouse, customer_district, customer, 0);
            read(access, Row::Customer, &key, value)?;
            add(value, 0, amount.wrapping_neg())?;
            add(value, 1, amount)?;
            add(value, 2, 1)?;
            access.put(&key, value)?;
            let key = Key::new(&[&[Row::History as u8][..], &number.to_be_bytes()].concat());
            access.put(&key, &Row::History.value(&[amount]))
        })
    }

    /// Makes an order, of so many lines. Nothing if it was taken back.
    fn new_order(&mut self) -> Result<Option<u64>> {
        let (home, district) = (self.home, self.random.random_range(0..DISTRICTS));
        let customer = self.random.random_range(0..CUSTOMERS);
        let lines = self.lines();
        let taken_back = self.random.random_range(0..100) == 0;
        let (count, value, mut at_the_end) = (lines.len() as u64, &mut self.value, false);
        let result = self.worker.transact(&mut |access| {
            read(access, Row::Warehouse, &Row::Warehouse.key(home, 0, 0, 0), value)?;
            read(access, Row::Customer, &Row::Customer.key(home, district, customer, 0), value)?;
            let key = Row::District.key(home, district, 0, 0);
            read(access, Row::District, &key, value)?;
            let order = counter(value, 0)? as u32;
            add(value, 0, 1)?;
            access.put(&key, value)?;
            access.put(
                &Row::Order.key(home, district, order, 0),
                &Row::Order.value(&[customer.into(), count]),
            )?;
            access.put(&Row::NewOrder.key(home, district, order, 0), &Row::NewOrder.value(&[]))?;
            for (number, line) in (0..).zip(&lines) {
                let price = order_line(access, home, line, value)?;
                let row = Row::OrderLine.value(&[line.item.into(), price * line.quantity]);
                access.put(&Row::OrderLine.key(home, district, order, number), &row)?;
            }
            at_the_end = true;
            ensure!(!taken_back, "the order is taken back");
            Ok(())
        });
        if taken_back && at_the_end { Ok(None) } else { result.map(|()| Some(count)) }
    }

    /// 5 to 15 lines of different items, in the order of items, so that no two orders wait for each other in a circle.
    fn lines(&mut self) -> Vec<Line> {
        let count = self.random.random_range(5..=15);
        let mut lines: Vec<Line> = Vec::new();
        while lines.len() < count {
            let item = self.random.random_range(0..ITEMS);
            if lines.iter().all(|line| line.item != item) {
                let supplier = self.warehouse(1);
                lines.push(Line { item, supplier, quantity: self.random.random_range(1..=10) });
            }
        }
        lines.sort_by_key(|line| (line.item, line.supplier));
        lines
    }
}

/// Takes one line's goods from the stock, and returns their price.
fn order_line(access: &mut dyn Access, home: u16, line: &Line, value: &mut Vec<u8>) -> Result<u64> {
    read(access, Row::Item, &Row::Item.key(0, 0, line.item, 0), value)?;
    let price = counter(value, 0)?;
    let key = Row::Stock.key(line.supplier, 0, line.item, 0);
    read(access, Row::Stock, &key, value)?;
    let enough = counter(value, 0)? >= line.quantity + 10;
    add(value, 0, if enough { line.quantity.wrapping_neg() } else { 91 - line.quantity })?;
    add(value, 1, line.quantity)?;
    add(value, 2, 1)?;
    add(value, 3, u64::from(line.supplier != home))?;
    access.put(&key, value)?;
    Ok(price)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::MemoryTable;

    #[test]
    fn transactions_keep_the_tables_consistent_and_a_lost_update_is_found() {
        let engine = MemoryTable::default();
        let tables = Tpcc::new(&engine, 2);
        tables.load().unwrap();
        assert_eq!(engine.key_count().unwrap(), super::rows(2));
        for mix in [Mix::Both, Mix::Payment, Mix::NewOrder] {
            assert!(tables.run(mix, 2, Duration::from_millis(10)).unwrap().ops > 0);
            tables.check().unwrap();
            tables.check_count().unwrap();
        }
        assert!(tables.orders.load(Ordering::Relaxed) > 0);
        let mut worker = engine.worker().unwrap();
        worker.add(&Row::Warehouse.key(1, 0, 0, 0), 1).unwrap();
        assert!(tables.check().unwrap_err().to_string().contains("its districts have"));
        worker.add(&Row::Warehouse.key(1, 0, 0, 0), u64::MAX).unwrap();
        worker.add(&Row::District.key(1, 3, 0, 0), 1).unwrap();
        // The order that is counted is not there.
        assert!(tables.check().unwrap_err().to_string().contains("of district 3 of warehouse 1 is not what"));
        worker.add(&Row::District.key(1, 3, 0, 0), u64::MAX).unwrap();
        // Of an order that nobody makes: of the first of all, if it has as many lines, this would be one too many.
        worker
            .put(&Row::OrderLine.key(0, 0, FIRST_ORDER as u32 - 1, 15), &Row::OrderLine.value(&[]))
            .unwrap();
        assert!(tables.check_count().unwrap_err().to_string().contains("rows of TPC-C"));
        tables.check().unwrap();
        tables.orders.fetch_add(1, Ordering::Relaxed);
        assert!(tables.check().unwrap_err().to_string().contains("orders were made"));
    }
}
