use std::process::ExitCode;

fn main() -> ExitCode {
    exist_user::cli::main()
}
