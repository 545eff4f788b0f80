fn main() {
    println!("exist {}", env!("CARGO_PKG_VERSION"));
}
