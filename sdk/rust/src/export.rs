//! The macros that turn a type into a component's exports.

/// Exports a type that implements [`Reward`](crate::reward::Reward). Nothing on other targets than wasm32.
#[macro_export]
macro_rules! export_reward {
    ($plugin:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            type Plugin = $plugin;
    $crate::internal::reward::export!(Plugin with_types_in $crate::internal::reward);
            $crate::metadata!();
        };
    };
}

/// Exports a type that implements [`GroupReward`](crate::reward::GroupReward). Nothing on other targets than wasm32.
#[macro_export]
macro_rules! export_group_reward {
    ($plugin:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            type Plugin = $plugin;
    $crate::internal::group_reward::export!(Plugin with_types_in $crate::internal::group_reward);
            $crate::metadata!();
        };
    };
}

/// Exports a type that implements [`Episode`](crate::environment::Episode). Nothing on other targets than wasm32.
#[macro_export]
macro_rules! export_environment {
    ($plugin:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            type Plugin = $crate::environment::Exported<$plugin>;
    $crate::internal::environment::export!(Plugin with_types_in $crate::internal::environment);
            $crate::metadata!();
        };
    };
}

/// Exports a type that implements [`Estimator`](crate::estimator::Estimator). Nothing on other targets than wasm32.
#[macro_export]
macro_rules! export_estimator {
    ($plugin:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            type Plugin = $plugin;
    $crate::internal::estimator::export!(Plugin with_types_in $crate::internal::estimator);
            $crate::metadata!();
        };
    };
}

/// Exports a type that implements [`Loss`](crate::loss::Loss). Nothing on other targets than wasm32.
#[macro_export]
macro_rules! export_loss {
    ($plugin:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            type Plugin = $plugin;
    $crate::internal::loss::export!(Plugin with_types_in $crate::internal::loss);
            $crate::metadata!();
        };
    };
}

/// Exports a type that implements [`Interpreter`](crate::interpreter::Interpreter). Nothing on other targets than wasm32.
#[macro_export]
macro_rules! export_interpreter {
    ($plugin:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            type Plugin = $crate::interpreter::Exported<$plugin>;
    $crate::internal::interpreter::export!(Plugin with_types_in $crate::internal::interpreter);
            $crate::metadata!();
        };
    };
}

/// Puts the version and the description of the *plugin's* package into custom sections of its component,
/// where `molt plugin inspect` reads them without running anything.
#[doc(hidden)]
#[macro_export]
macro_rules! metadata {
    () => {
        $crate::metadata!("version", env!("CARGO_PKG_VERSION"));
        $crate::metadata!("description", env!("CARGO_PKG_DESCRIPTION"));
    };
    ($section:literal, $text:expr) => {
        const _: () = {
            const TEXT: &str = $text;
            #[used]
            #[unsafe(link_section = $section)]
            static SECTION: [u8; TEXT.len()] = {
                let mut bytes = [0; TEXT.len()];
                bytes.copy_from_slice(TEXT.as_bytes());
                bytes
            };
        };
    };
}
